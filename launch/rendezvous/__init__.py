"""TODO room launch/rendezvous."""
