"""Use of the machine: device, precision and memory."""
