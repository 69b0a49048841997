"""The drop-in for aiokafka, on real Apache Kafka."""
