"""TODO room launch/rendezvous/stores."""
