"""The drop-in for aiokafka's producer; a folder called aiokafka would hide that package."""
