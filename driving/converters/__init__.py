"""Public driving datasets into episode JSON and images, without TensorFlow or a devkit; see driving/convert.py."""
