"""The process of the preflight's user code without a process: to start Python is most of what such a check costs."""

import pickle
import sys
from pathlib import Path

from programs.reward_preflight.environment_process import load_environment_process
from programs.reward_preflight.reward_process import OwnProcess, load_functions

LOADERS = {"rewards": load_functions, "environment": load_environment_process}


class ProcessHere(OwnProcess):
    """Calls in this process, on copies as a pipe makes them; a new one imports the user's files anew."""

    def start(self):
        files = {Path(file).resolve() for file in self.files}
        for name, module in list(sys.modules.items()):
            if getattr(module, "__file__", None) and Path(module.__file__).resolve() in files:
                del sys.modules[name]
        about, self.answer = LOADERS[self.kind](**self.loaded)
        return about

    def call(self, name, arguments, limit_s=0.0):
        return pickle.loads(pickle.dumps(self.answer(name, pickle.loads(pickle.dumps(arguments)))))
