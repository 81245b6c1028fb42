"""Every tower and every joint that is known: each file of this folder says its own."""

from __future__ import annotations

from collections.abc import Mapping

from kvpipe.models.towers import (
    audio,
    codecs,
    conformers,
    florence,
    gemma3n,
    gemma4,
    joints,
    merged,
    qformers,
    sam,
    speech,
    vision,
    vits,
)
from kvpipe.models.towers.joints import Given, Joint, Supplied, Tower, Uncounted

TOWERS: Mapping[str, Tower] = {
    **vision.TOWERS,
    **vits.TOWERS,
    **merged.TOWERS,
    **sam.TOWERS,
    **qformers.TOWERS,
    **codecs.TOWERS,
    **florence.TOWERS,
    **gemma3n.TOWERS,
    **gemma4.TOWERS,
    **audio.TOWERS,
    **conformers.TOWERS,
    **speech.TOWERS,
}
JOINTS: Mapping[str, Joint] = {
    **joints.JOINTS,
    **vits.JOINTS,
    **merged.JOINTS,
    **sam.JOINTS,
    **qformers.JOINTS,
    **codecs.JOINTS,
    **florence.JOINTS,
    **gemma3n.JOINTS,
    **gemma4.JOINTS,
    **conformers.JOINTS,
    **speech.JOINTS,
}
GIVEN: Mapping[str, Given] = {**vits.GIVEN, **merged.GIVEN, **qformers.GIVEN, **speech.GIVEN}
SUPPLIED: Supplied = {**joints.SUPPLIED, **vits.SUPPLIED}
UNCOUNTED: Uncounted = vits.UNCOUNTED
