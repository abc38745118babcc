"""Message passing with alpha-divergences: one engine and its presets."""

from pyrograph.infer.message_passing.bp import BP
from pyrograph.infer.message_passing.engine import MessagePassing
from pyrograph.infer.message_passing.ep import EP, PowerEP
from pyrograph.infer.message_passing.fractional import FractionalBP
from pyrograph.infer.message_passing.trw import TRW
from pyrograph.infer.message_passing.vmp import VMP

__all__ = ["BP", "EP", "TRW", "VMP", "FractionalBP", "MessagePassing", "PowerEP"]
