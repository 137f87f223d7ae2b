"""Where a Python stack stands, in the terms of training: in the loader, in a collective, in a save, in a debugger.

It is read from the names of files and functions, so that nothing has to be noted while the program runs. The loops
around the lines, by their code, tell whether a rank is past the loop of another one.
"""

from __future__ import annotations

import ast
import linecache
import os
import re
from types import CodeType, FrameType
from typing import Iterator, List, NamedTuple, Optional, Sequence, Tuple

from ddpfix import devices
from ddpfix.groups import calls
from ddpfix.rules.facts import (
    BACKWARD,
    CHECKPOINT,
    COLLECTIVE,
    DEBUGGER,
    DEVICE,
    EVALUATES,
    EVALUATION,
    FORWARD,
    GPU,
    LOADER,
    OTHER,
    STEP,
    WRAPPER,
    Standing,
)
from ddpfix.user_code import OWN, is_users

_DEBUGGERS = ("bdb.py", "pdb.py", "ipdb/", "pydevd", "debugpy/", "pudb/", "IPython/")
_SAVES = ("torch/serialization.py", "safetensors/", "torch/distributed/checkpoint/")
_COLLECTIVES = (
    "torch/distributed/distributed_c10d.py",
    "torch/distributed/nn/functional.py",
    "torch/distributed/_functional_collectives.py",
    "torch/distributed/rendezvous.py",
    "torch/distributed/utils.py",
)
_BACKWARD = ("torch/autograd/__init__.py", "torch/autograd/graph.py")
# Files of torch in which a rank stands whose GPU is given no more work: what it waits for is not in their names.
_LAUNCHES = (
    *("torch/nn/", "torch/optim/", "torch/amp/", "torch/accelerator/", "torch_npu/"),
    *(f"torch/{kind}/" for kind in devices.KINDS),
    *("torch/_tensor.py", "torch/_tensor_str.py", "torch/functional.py", "torch/utils/_foreach_utils.py"),
)
_SAVING = re.compile(r"(^|_)(save|saving)(_|$)|(save|write)_?(checkpoint|ckpt|model)", re.IGNORECASE)
_TRAINS = re.compile(r"train|fit", re.IGNORECASE)
_WRITES = re.compile(r"\b(open|fsync|save|dump)\(|\.(write|flush)\(")
_WAITS = re.compile(r"\.wait\(")
# A function that does several things tells none of them by its name (transformers' _maybe_log_save_evaluate).
_SEVERAL = re.compile(r"(^|_)log_|save_(and_)?eval|eval\w*_(and_)?save", re.IGNORECASE)
_SYNCHRONIZES = re.compile(r"\.(item|cpu|tolist|numpy|synchronize)\(")
# What reads a value as well, if a rank stands in it for long: in passing it tells nothing.
_READS = re.compile(
    r"\b(float|isnan|isinf|isfinite|nonzero|is_nonzero|masked_select|empty_cache)\("
    rf"|\.(any|all|equal|unique|to|{'|'.join(devices.KINDS)})\("
)
_SLEEPS = re.compile(r"\.wait\(|\bsleep\(")
_MODULE = "torch/nn/modules/module.py"
_SOURCE = 60
# More functions than that of a program's own tell nothing more.
_MOST = 12
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


class StackFrame(NamedTuple):
    """One frame of a stack."""

    file: str
    line: int
    name: str

    @classmethod
    def of(cls, frame: FrameType) -> StackFrame:
        return cls(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)

    def is_in(self, *parts: str) -> bool:
        """Return whether the file is one of these; a part that ends with a slash is a folder."""
        path = "/" + self.file.replace(os.sep, "/")
        return any(f"/{part}" in path for part in parts)

    @property
    def is_library(self) -> bool:
        """Whether it is Python's own, torch's, or ours."""
        return calls.is_library(self.file)


class Place(NamedTuple):
    """Where a rank stands.

    Attributes:
        what: the function of torch or of the program, in words.
        where: the user's file and line ("train.py:88"); the innermost one outside of torch where there is none. Of a
            collective in a toolkit, its function and line come first.
    """

    phase: str
    what: str
    where: str
    source: str


def classify(
    stack: Sequence[StackFrame], training: Optional[bool] = None, on_device: bool = False, stands: bool = False
) -> Place:
    """Return the place of a stack.

    Args:
        stack: the outermost frame first, not empty.
        training: whether the module whose forward runs is in training mode; None where none runs, or it is not known.
        on_device: whether the process uses a GPU, whose work the program's own line may wait for.
        stands: whether it has stood in one instruction for seconds.
    """
    # The innermost frame of the user's files, else of what is neither torch's, Python's nor ours.
    own = [spot for spot in stack if is_users(spot.file)] or [spot for spot in stack if not spot.is_library]
    user = (own or list(stack))[-1]
    where = f"{os.path.basename(user.file)}:{user.line}"
    source = linecache.getline(user.file, user.line).strip()[:_SOURCE]
    phase, what = _phase(stack, user, training, source, on_device and stands)
    if phase == OTHER and on_device and stack[-1] == user and _SYNCHRONIZES.search(source):
        phase, what = DEVICE, GPU
    if phase == COLLECTIVE:
        # The function of a toolkit that the user's line has called, and which calls the collective: trainer.fit().
        inner = stack[len(stack) - list(reversed(stack)).index(user) :]
        tools = [spot for spot in inner if not spot.is_library and spot.name not in calls.HAND_ON]
        for tool in tools[-1:]:
            where = f"{tool.name} ({os.path.basename(tool.file)}:{tool.line}), called at {where}"
    return Place(phase, what, where, source)


def _phase(
    stack: Sequence[StackFrame], user: StackFrame, training: Optional[bool], source: str, stands: bool
) -> Tuple[str, str]:
    last, save, loader = stack[-1], _first(stack, *_SAVES), _first(stack, "torch/utils/data/dataloader.py")
    loading = f"DataLoader.{loader.name}" if loader else ""
    evaluation = _named(stack, EVALUATES) or ("forward in evaluation mode" if training is False else "")
    for phase, what in (
        (DEBUGGER, "a debugger" if _first(stack[-12:], *_DEBUGGERS) else ""),
        (COLLECTIVE, _collective(stack)),
        (CHECKPOINT, f"{'torch.' if save.is_in('torch/serialization.py') else ''}{save.name}" if save else ""),
        (WRAPPER, _wrapper(last)),
        (BACKWARD, "backward" if any(map(_is_backward, stack)) else ""),
        (LOADER, loading if stands else ""),
        (DEVICE, _device(stack, training) if stands else ""),
        (STEP, "the optimizer's step" if _steps(stack) else ""),
        # Names tell less than what is seen above: train_and_evaluate() may be anywhere around a backward.
        (EVALUATION, "" if training else evaluation),
        (CHECKPOINT, _named(stack, _SAVING)),
        (LOADER, loading),
        (FORWARD, "forward" if _first(stack, _MODULE) else ""),
    ):
        if what:
            return phase, what
    if last == user and _WAITS.search(source):
        return COLLECTIVE, "wait"
    if _WRITES.search(source):
        return CHECKPOINT, user.name if last == user else _short(last)
    return OTHER, _short(last)


def _first(stack: Sequence[StackFrame], *files: str) -> Optional[StackFrame]:
    """Return the outermost frame in one of these files."""
    return next((spot for spot in stack if spot.is_in(*files)), None)


def _collective(stack: Sequence[StackFrame]) -> str:
    """Return the collective, by the function that the program called; our own waiting for ranks is one as well."""
    last = stack[-1]
    if last.file.startswith(OWN) and last.name in ("look_until", "wait") and _first(stack, "ddpfix/exchange/"):
        return "a comparison of ranks by ddpfix"
    return next((spot.name for spot in stack if spot.is_in(*_COLLECTIVES) and spot.name != "wrapper"), "")


def _wrapper(last: StackFrame) -> str:
    if not last.is_in("torch/nn/parallel/distributed.py"):
        return ""
    return "DDP's constructor" if last.name == "__init__" else "DDP's forward"


def _is_backward(spot: StackFrame) -> bool:
    return spot.is_in(*_BACKWARD) or (spot.name == "backward" and spot.is_in("torch/_tensor.py"))


def _device(stack: Sequence[StackFrame], training: Optional[bool]) -> str:
    """Return what a rank that stands in one instruction may wait for its GPU in; "the GPU" where the line reads it.

    The driver is called below Python, by whatever needs a value or launches a kernel when the queue is full: in the
    program, a toolkit, a gradient scaler, a layer, an optimizer.
    """
    last = stack[-1]
    text = linecache.getline(last.file, last.line)
    if _SLEEPS.search(text):
        return ""
    if _SYNCHRONIZES.search(text) or _READS.search(text):
        return GPU
    # The queue is full wherever it is: in a model's own forward, too.
    return _short(last) if last.is_in(*_LAUNCHES) or (training and _first(stack, _MODULE)) else ""


def _steps(stack: Sequence[StackFrame]) -> bool:
    """Return whether an optimizer steps; within the closure that it was given, Lightning has forward and backward."""
    inner = [number for number, spot in enumerate(stack) if spot.name == "step" and spot.is_in("torch/optim/")]
    return bool(inner) and all(spot.is_library for spot in stack[inner[-1] + 1 :])


def _named(stack: Sequence[StackFrame], words: re.Pattern[str]) -> str:
    """Return the innermost function of the program or of a toolkit with such a name."""
    for spot in reversed(stack):
        tells = not (_TRAINS.search(spot.name) or _SEVERAL.search(spot.name) or spot.is_library)
        if tells and words.search(spot.name):
            return spot.name
    return ""


def _short(spot: StackFrame) -> str:
    """Return a function in words: "wait of multiprocessing/pool.py"; the user's own by its name."""
    if is_users(spot.file):
        return "the script" if spot.name == "<module>" else spot.name
    return f"{spot.name} of {'/'.join(spot.file.replace(os.sep, '/').split('/')[-2:])}"


def loops_of(frames: Sequence[FrameType]) -> Tuple[Standing, ...]:
    """Return the functions of the program and of its packages on a stack, the outermost first, with their loops.

    A barrier, a save or an evaluation after a loop over data waits for the ranks that have more of them. One inside of
    the loop, or in a later turn of a loop around it, is another matter.
    """
    own: List[Standing] = []
    for frame in frames:
        file, line, name = StackFrame.of(frame)
        if not calls.is_library(file):
            own.append((file, name, line, _around(frame) if len(own) < _MOST else ()))
    return tuple(own[:_MOST])


def _around(frame: FrameType) -> Tuple[Tuple[int, int], ...]:
    """Return the loops around the line that runs, as far as they are of the same function."""
    code, first, line = frame.f_code, frame.f_code.co_firstlineno, frame.f_lineno
    text = "".join(linecache.getlines(code.co_filename, frame.f_globals))
    try:
        whole = compile(text, code.co_filename, "exec", dont_inherit=True)
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    if not any(each.co_firstlineno == first and each.co_code == code.co_code for each in _below(whole)):
        # The file has been edited since the program began, or is not what runs.
        return ()
    # What stands in the branch "else" of a loop runs after it.
    found = ((node.lineno, node.body[-1].end_lineno or 0) for node in ast.walk(tree) if isinstance(node, _LOOPS))
    return tuple(sorted((start, end) for start, end in found if first <= start <= line <= end))


def _below(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a module and of all that is defined in it."""
    yield code
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _below(value)
