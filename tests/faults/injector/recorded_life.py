"""The life of a storage as it was recorded, in which the power can be cut at any moment."""

from tests.faults.injector.campaign import FaultStage
from tests.faults.injector.disk_model import DiskModel, Luck
from tests.faults.injector.interposer import CallKind, SystemCall, marks_of
from tests.faults.injector.judge import judge
from tests.support.fault_processes import Wrong, expect


class RecordedLife:
    """The calls of one life, and what a disk held at each of them; a later one is quick to ask for.

    ``moments`` are those before something more is sure, each as the number of the next call: at no other one was more
    acknowledged with the same on the disk. The last is the end.
    """

    def __init__(self, stage: FaultStage, calls: list[SystemCall]) -> None:
        self._stage = stage
        self._calls = calls
        self._rewind()
        self.moments = [number for number, call in enumerate(calls) if self._step(call)]
        self.moments.append(len(calls))
        differences = self._model.differences()
        expect(not differences, f"a call went by unseen: {differences[:3]}")

    def _rewind(self) -> None:
        self._model = DiskModel(self._stage.world.root)
        self._place = 0

    def _step(self, call: SystemCall) -> bool:
        changes = self._model.would_change(call)
        self._model.follow(call)
        self._place += 1
        return changes

    def moments_after(self, place: int) -> list[int]:
        """The moments after a call at which more was said to the log than at the one before."""
        found, before = [], place
        for moment in self.moments:
            if moment > place and any(call.kind is CallKind.MARK for call in self._calls[before:moment]):
                found.append(moment)
                before = moment
        return found

    def cut_power(self, moment: int, luck: Luck | None = None) -> None:
        """Cut the power before a call, and look what is left; raises ``Wrong``."""
        if self._place > moment:
            self._rewind()
        while self._place < moment:
            self._step(self._calls[self._place])
        left = self._stage.emptied("left")
        self._model.cut_power(left, luck)
        try:
            judge(self._stage.world._replace(root=left), marks_of(self._calls[:moment]))
        except Wrong as wrong:
            raise Wrong(f"after a power cut at {moment} of {len(self._calls)} calls: {wrong}") from wrong
