"""Message passing with alpha-divergences: one engine and its presets.

Rooms, each of which imports those before it:

- :mod:`.nodes`: beliefs of nodes by family, and messages added to them.
- :mod:`.densities`: what factors of continuous nodes are functions of.
- :mod:`.quadrature`: moments of tilted distributions on points.
- :mod:`.continuous`: messages of factors with continuous nodes.
- :mod:`.discrete`: messages of factors of discrete nodes.
- :mod:`.network`: a factor graph read into families of nodes and blocks of like factors.
- :mod:`.sweeps`: a pass over all messages, by schedule.
- :mod:`.settling`: what brings sweeps to a fixed point, and whether it holds.

The engine and its presets stand here.
"""

from pyrograph.infer.message_passing.bp import BP
from pyrograph.infer.message_passing.engine import MessagePassing
from pyrograph.infer.message_passing.ep import EP, PowerEP
from pyrograph.infer.message_passing.fractional import FractionalBP
from pyrograph.infer.message_passing.trw import TRW
from pyrograph.infer.message_passing.vmp import VMP

__all__ = ["BP", "EP", "TRW", "VMP", "FractionalBP", "MessagePassing", "PowerEP"]
