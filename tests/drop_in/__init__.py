"""The drop-in for aiokafka's producer. (Not named after aiokafka: that would hide the package.)"""
