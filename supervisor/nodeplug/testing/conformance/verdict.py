"""How judging a rule ends other than well.

Owns: the two exceptions that rules, examinations and rehearsals raise.
Refuses: to know any of these.
"""


class Broken(Exception):
    """The rule is broken; the text is what was seen."""


class NotApplicable(Exception):
    """The rule does not apply to this plugin, or not here; the text says why."""
