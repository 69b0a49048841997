"""Tests of the drop-in for aiokafka's producer; a folder named aiokafka would hide that package."""
