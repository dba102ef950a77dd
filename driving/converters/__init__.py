"""Public driving datasets into episode JSON and pictures, without TensorFlow or a devkit; see driving/convert.py."""
