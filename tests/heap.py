"""The objects that garbage collections look through while the tests run: not those that were there
when all tests were collected. They are a million and take half a second each time. Tests of memory
ask for dozens of collections, and an engine for one with each model that it loads or unloads."""

import gc


class Heap:
    """Stands before `gc.freeze` and `gc.unfreeze`, since an engine calls both. Objects that were
    kept stay frozen unless others have been frozen after them: there is no way to thaw some."""

    def __init__(self) -> None:
        self._freeze, self._unfreeze = gc.freeze, gc.unfreeze
        self._more = False
        self._thawed = False
        self._file = ""

    def stand_before(self) -> None:
        gc.freeze = self.freeze
        gc.unfreeze = self.unfreeze

    def keep(self) -> None:
        """Freeze all that there is and is no garbage."""
        gc.collect()
        self._freeze()
        self._more = self._thawed = False

    def begin(self, file: str) -> None:
        """Tests of this file come. Between those of one file nothing is frozen: they may share a
        model, and look at what it leaves behind."""
        if self._thawed and file != self._file:
            self.keep()
        self._file = file

    def freeze(self) -> None:
        self._freeze()
        self._more = True

    def unfreeze(self) -> None:
        if self._more:
            self._unfreeze()
            self._more, self._thawed = False, True
