"""Records -> tables, figures, the HTML page, TensorBoard, Prometheus."""
