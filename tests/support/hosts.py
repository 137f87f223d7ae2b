"""Two hosts on one machine: namespaces with a name, a network and an address each, joined by a virtual cable.

Everything lives in a user namespace of its own, so no right of an administrator is used outside of it and nothing is
left behind: the kernel removes it all when its first process ends, which it does with the tests.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Iterator, List, Optional, Sequence, Tuple

NAMES = ("node-a", "node-b")
ADDRESSES = ("10.77.0.1", "10.77.0.2")
# In the outer namespaces: a process a host keeps its namespaces, and reads from where nothing comes.
_SCRIPT = """
set -e
mount --bind "$1" /etc/hosts
unshare -n -u sleep infinity & a=$!
unshare -n -u sleep infinity & b=$!
trap 'kill $a $b' EXIT
for pid in $a $b; do
  until [ "$(readlink /proc/$pid/ns/net)" != "$(readlink /proc/self/ns/net)" ] &&
        [ "$(readlink /proc/$pid/ns/uts)" != "$(readlink /proc/self/ns/uts)" ]; do sleep 0.02; done
done
ip link add cable-a type veth peer name cable-b
join() {
  ip link set "$2" netns "$1"
  nsenter -t "$1" -n -u sh -c "hostname $3; ip address add $4/24 dev $2; ip link set $2 up; ip link set lo up"
}
join $a cable-a node-a 10.77.0.1
join $b cable-b node-b 10.77.0.2
echo "$a $b"
read -r forever || true
"""
_HOSTS = "127.0.0.1 localhost\n" + "".join(f"{at} {name}\n" for at, name in zip(ADDRESSES, NAMES))


@dataclass
class Host:
    """One of the two."""

    name: str
    address: str
    process: int

    def command(self, words: Sequence[str], folder: Path) -> List[str]:
        """The words of a command that runs ``words`` on this host, in a folder: who enters mounts leaves his own."""
        inside = ("nsenter", "-t", str(self.process), "-U", "--preserve-credentials", "-n", "-u", "-m")
        return [*inside, f"--wd={folder}", "--", *words]


@contextlib.contextmanager
def two_hosts(folder: Path) -> Iterator[Tuple[Host, Host]]:
    """Both hosts, while the body runs.

    Raises:
        OSError: the system permits no such namespaces.
    """
    names = folder / "hosts"
    names.write_text(_HOSTS)
    words = ["unshare", "-r", "-m", "-n", "-u", "bash", "-c", _SCRIPT, "hosts", str(names)]
    holder = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert holder.stdin and holder.stdout and holder.stderr
    try:
        pids = holder.stdout.readline().split()
        if len(pids) != 2:
            holder.kill()
            raise OSError(f"no network namespaces here: {holder.stderr.read().strip() or 'no reason was given'}")
        first, second = (Host(*each) for each in zip(NAMES, ADDRESSES, map(int, pids)))
        yield first, second
    finally:
        holder.stdin.close()
        holder.wait(20)
        holder.stdout.close()
        holder.stderr.close()


@lru_cache(maxsize=None)
def why_not() -> Optional[str]:
    """Why there can be no two hosts on this machine; None if there can."""
    missing = [name for name in ("unshare", "nsenter", "ip") if shutil.which(name) is None]
    if missing or not sys.platform.startswith("linux"):
        return f"two hosts need Linux with {', '.join(missing) or 'namespaces'} (packages util-linux and iproute2)"
    try:
        with tempfile.TemporaryDirectory() as folder, two_hosts(Path(folder)):
            return None
    except OSError as error:
        return str(error)
