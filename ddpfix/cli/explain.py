"""``ddpfix explain``: what a fix does and why; torch and toolkits are not imported."""

from __future__ import annotations

from rich.text import Text

from ddpfix import _switch
from ddpfix.cli.plan import new_console, plain
from ddpfix.matrix import loader, model
from ddpfix.settings import gone, reading
from ddpfix.settings.reading import near


def explain(wanted: str) -> int:
    """Print what one fix does, the problem, the evidence, the versions and the setting; its id comes last.

    Returns 2 where no fix has this id. A removed name (any key of the table, or a command without ``ddpfix``) is
    answered with its line, a renamed patch with a line and its text.
    """
    earlier = next((key for key in (wanted, f"ddpfix {wanted}") if key in gone.GONE), None)
    if earlier is not None:
        _switch.say(gone.answer(earlier))
        return 0
    whole = loader.load()
    if wanted in gone.RENAMED:
        _switch.say(gone.answer(wanted))
    patch = whole.patches.get(gone.RENAMED.get(wanted, wanted))
    if patch is None:
        _switch.say(f"no fix is called {wanted!r}; python -m ddpfix plan --all lists them{near(wanted, whole.patches)}")
        return 2
    console = new_console()
    console.print(Text("ddpfix ").append_text(plain(f"{patch.does or patch.problem}", "bold")))
    console.print(Text("\nProblem: ").append_text(plain(patch.problem)))
    console.print(Text("\nEvidence:"))
    for item in patch.evidence:
        console.print(plain(f"  {item}"))
    console.print(Text("\nVersions:"))
    for row in whole.rows_of(patch.id):
        tested = f"; tested: {', '.join(map(str, row.tested))}" if row.tested else ""
        console.print(plain(f"  {patch.toolkit} {row.versions}: {row.status}, {row.why}{tested}"))
        for target in row.targets:
            console.print(plain(f"    at {target}", "dim"))
        for place in row.also:
            console.print(plain(f"    changes {place}", "dim"))
    if patch.also:
        console.print(Text("\nChanges as well:"))
    for item in patch.also:
        console.print(plain(f"  {item}"))
    console.print(Text("\nSetting: ").append_text(plain(_controls(patch))))
    console.print(Text("\nFix: ").append_text(plain(patch.id)))
    return 0


def _controls(patch: model.Patch) -> str:
    switch = f"{reading.switch_name(patch.id)}=0 switches it off, =force applies it to an untested release"
    if not patch.default:
        switch = f"{reading.switch_name(patch.id)}=1 switches it on (it is off by default)"
    if patch.setting is None:
        return switch
    variable = reading.PREFIX + patch.setting.upper()
    return f"used when {variable} is {' or '.join(patch.when)}; {switch}" if patch.when else f"{variable}; {switch}"
