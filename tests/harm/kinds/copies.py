"""A second copy of what the job was started with does nothing, and says so."""

from tests.harm.program import script

SAYS = r"(?i)second|another|already|two"
script("copies", "second_copy", fresh=True, due=(SAYS,))
script("copies", "second_copy", variant="torchrun", launcher="torchrun", due=(SAYS,))
