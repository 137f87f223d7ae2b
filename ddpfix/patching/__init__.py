"""How a change is made, recorded and taken back."""
