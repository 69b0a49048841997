"""What tests on real Apache Kafka share; the tests are in the folders named ``on_kafka``."""
