"""What stands around a run: the configuration of Prometheus, and pushing to Grafana. Torch-free; nothing here is needed for training."""
