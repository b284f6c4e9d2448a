"""A pretended CUDA device: numbers of the CPU, tensors that say cuda:0, CUDA's rules for mixing devices.

    with PretendedCuda() as gpu:
        run(["--device", "cuda", ...])
    assert not gpu.faults

Every tensor is a plain CPU tensor; its storage is marked `cuda` or `cpu`, or not at all where an operator made it of
neither. What CUDA would refuse is a fault: a CPU tensor beside a CUDA tensor, numpy of a CUDA tensor, a generator of
the other device; in a CUDA graph, what waits or copies to the GPU. Kernel launches are counted, and what makes the host
wait (item, tolist, nonzero, a mask as an index, copies from or to the CPU) is counted by the line that asked.

FakeTensorMode cannot do this: its backward pass needs a driver, and trainers look at values. Not seen here: CUDA's
kernels, rounding, autocast lists (the CPU's are used), streams, NCCL, memory.
"""

import collections
import contextlib
import functools
import importlib
import threading
import traceback
import types
from pathlib import Path

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

CUDA = torch.device("cuda", 0)
ROOT = str(Path(__file__).resolve().parent.parent)
REAL_DEVICE = torch._C.TensorBase.device
CROSSING = {"aten::copy_", "aten::_to_copy", "aten::set_", "aten::_copy_from", "aten::resize_"}  # may mix devices
INDEXING = {  # indices may lie on the CPU: they are copied, which waits
    *("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"),
    *("aten::_unsafe_index", "aten::_unsafe_index_put"),
}
WAITING = {  # the shape of what comes out, or a value, is known to the device only
    *("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::unique_dim", "aten::_unique2"),
    *("aten::equal", "aten::repeat_interleave", "aten::bincount", "aten::unique_consecutive", "aten::is_nonzero"),
}
WITHOUT_KERNEL = {
    *("aten::detach", "aten::alias", "aten::lift_fresh", "aten::empty", "aten::empty_like", "aten::new_empty"),
    *("aten::empty_strided", "aten::new_empty_strided", "aten::set_", "aten::resize_", "aten::_unsafe_view"),
    *("aten::_local_scalar_dense", "aten::sym_size", "aten::is_same_size"),
}
PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"}
NAMES = (
    "empty zeros ones full rand randn randint randperm arange linspace logspace eye tensor as_tensor asarray "
    "scalar_tensor empty_strided tril_indices triu_indices from_numpy"
)
FACTORIES = {getattr(torch, name) for name in NAMES.split()}
FROM_TENSORS = {torch.tensor, torch.as_tensor, torch.asarray}
RMS_NORMS = {torch.rms_norm, torch.nn.functional.rms_norm}
MOVES = {torch.Tensor.to, torch.Tensor.cuda, torch.Tensor.cpu}
QUERIES = {  # of torch.cuda, as one GPU answers them
    "is_available": lambda: True,
    "is_bf16_supported": lambda *_, **__: True,
    "device_count": lambda: 1,
    "current_device": lambda: 0,
    "get_device_capability": lambda *_: (9, 0),
    "get_device_name": lambda *_: "pretended",
    "get_device_properties": lambda *_: types.SimpleNamespace(
        uuid="pretended", name="pretended", total_memory=80 * 2**30
    ),
    "mem_get_info": lambda *_: (70 * 2**30, 80 * 2**30),
    "set_device": lambda device: torch._utils._get_device_index(device),  # refuses `cuda` without a number
    "is_initialized": lambda: False,
    "get_rng_state": lambda *_: torch.get_rng_state(),
    "get_rng_state_all": lambda: [torch.get_rng_state()],
    **dict.fromkeys(("memory_allocated", "max_memory_allocated"), lambda *_: 0),
}
LOOK_AS_THEY_LOAD = ("torch._dynamo", "torch.distributed.tensor", "bitsandbytes", "peft")  # at torch, and for CUDA
COMMANDS = "set_rng_state set_rng_state_all empty_cache synchronize manual_seed manual_seed_all"
COMMANDS += " reset_peak_memory_stats set_sync_debug_mode"


def asking_line() -> str:
    """`file:line function` of the innermost frame of this project outside the tests' machinery."""
    for frame in reversed(traceback.extract_stack()):
        inside = frame.filename.startswith(ROOT) and "site-packages" not in frame.filename
        if inside and frame.filename != __file__:
            return f"{Path(frame.filename).name}:{frame.lineno} {frame.name}"
    return "?"


def is_cuda(device) -> bool:
    """Whether what a call names as a device is a GPU; a number is one of a GPU."""
    return device is not None and (isinstance(device, int) or torch.device(device).type == "cuda")


def tensors(*values) -> list:
    """The tensors in arguments."""
    return [x for x in tree_leaves(values) if isinstance(x, torch.Tensor)]


def call(func, args, kwargs):
    """The operator's result; a matrix product with a wider output, which only CUDA has, is made of wider inputs."""
    if func._schema.name not in PRODUCTS or not func._schema.overload_name.startswith("dtype"):
        return func(*args, **kwargs)
    *inputs, dtype = args
    plain = func.overloadpacket.out if "out" in kwargs else func.overloadpacket.default
    return plain(*[x.to(dtype) for x in inputs], **kwargs)


class Marks:
    """Which storage lies where."""

    def __init__(self):
        self.known = {}

    def of(self, x) -> str | None:
        """`cuda`, `cpu`, or None for what an operator made from neither."""
        try:
            return self.known.get(x.untyped_storage()._cdata, (None, None))[1]
        except (NotImplementedError, RuntimeError):  # a tensor without storage
            return None

    def put(self, x, mark: str) -> None:
        """Mark a tensor's storage; the weak reference keeps its address from being used again."""
        if len(self.known) > 200_000:
            self.known = {key: entry for key, entry in self.known.items() if not entry[0].expired()}
        ref = StorageWeakRef(x.untyped_storage())
        self.known[ref.cdata] = (ref, mark)


class Graph(TorchDispatchMode):
    """A CUDA graph: operators with the tensors and numbers that they were recorded with, run again in their places."""

    def __init__(self, gpu):
        super().__init__()
        self.gpu, self.calls = gpu, []

    def __enter__(self):
        self.gpu.graph = self
        return super().__enter__()

    def __exit__(self, *error):
        self.gpu.graph = None
        return super().__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out

    def replay(self) -> None:
        """One launch; the host waits for none of it."""
        self.gpu.launches += 1
        with _disable_current_modes(), torch.no_grad(), torch.autocast("cpu", enabled=False):
            for func, args, kwargs, out in self.calls:
                for x, new in zip(tensors(out), tensors(func(*args, **kwargs)), strict=True):
                    if x.data_ptr() != new.data_ptr():  # neither a view nor changed in place
                        x.copy_(new)


class Rules(TorchDispatchMode):
    """Checks and counts every operator, also those of a backward pass."""

    def __init__(self, gpu):
        super().__init__()
        self.gpu = gpu

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        gpu, name, inputs = self.gpu, func._schema.name, tensors(args, kwargs)
        marks = [gpu.marks.of(x) for x in inputs]
        if "cuda" in marks:
            self.check(name, args, inputs, marks)
            views = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
            gpu.launches += not views and name not in WITHOUT_KERNEL
        out = call(func, args, kwargs or {})
        mark = next((m for m in ("cuda", "cpu") if m in marks), None if inputs else gpu.factory_mark())
        if mark and name != "aten::copy_":
            for x in tensors(out):
                if gpu.marks.of(x) is None:
                    gpu.marks.put(x, mark)
        return out

    def check(self, name: str, args, inputs: list, marks: list) -> None:
        """Faults and waits of an operator that has a CUDA tensor among its inputs."""
        gpu, indices = self.gpu, tensors(args[1]) if name in INDEXING else []
        strangers = [x for x, mark in zip(inputs, marks, strict=True) if mark == "cpu" and x.dim() > 0]
        if marks[0] == "cuda" and any(x is y for x in strangers for y in indices):
            gpu.wait("an index on the CPU")
            strangers = [x for x in strangers if not any(x is y for y in indices)]
        if strangers and name not in CROSSING:
            gpu.fault(f"{name}: a CPU tensor {[tuple(x.shape) for x in strangers]} beside a CUDA tensor")
        if name in WAITING or any(x.dtype in (torch.bool, torch.uint8) for x in indices):
            gpu.wait(name)


class Calls(TorchFunctionMode):
    """Turns cuda into cpu wherever a call names a device, and marks what is made or moved."""

    def __init__(self, gpu):
        super().__init__()
        self.gpu = gpu

    def __torch_function__(self, func, types, args=(), kwargs=None):
        gpu, kwargs = self.gpu, dict(kwargs or {})
        kwargs.pop("pin_memory", None)  # there is none without a driver
        if func is torch.Tensor.pin_memory:
            return args[0]
        if func is torch.Tensor.backward:  # recomputed layers and custom functions are looked at, too
            with self:
                gradient = {"grad_tensors": kwargs.pop("gradient")} if "gradient" in kwargs else {}
                return torch.autograd.backward(*args, **gradient, **kwargs)
        if func in MOVES:
            return self.moved(func, list(args), kwargs)
        if func in FACTORIES:
            return self.made(func, args, kwargs)
        if func in RMS_NORMS and gpu.marks.of(args[0]) == "cuda":
            return self.one_kernel(func, args, kwargs)
        if func is torch.Tensor.tolist and gpu.marks.of(args[0]) == "cuda":
            gpu.wait("tolist")
        if getattr(func, "__name__", "") in ("numpy", "__array__") and gpu.marks.of(args[0]) == "cuda":
            gpu.fault("numpy of a CUDA tensor")
        device = kwargs.get("device")
        if device is None or (not is_cuda(device) and torch.device(device).type != "cpu"):
            return func(*args, **kwargs)
        out = func(*args, **kwargs | {"device": torch.device("cpu")})  # zeros_like, new_zeros and their kind
        for x in tensors(out):
            gpu.marks.put(x, "cuda" if is_cuda(device) else "cpu")
        return out

    def one_kernel(self, func, args, kwargs):
        """What CUDA has a kernel for where weights have the input's dtype; the operators of the CPU do not count."""
        before, weight = self.gpu.launches, kwargs.get("weight", args[2] if len(args) > 2 else None)
        out = func(*args, **kwargs)
        if weight is None or weight.dtype == args[0].dtype:
            self.gpu.launches = before + 1
        return out

    def made(self, func, args, kwargs):
        """A new tensor, marked by the device that was named, or by the default one."""
        gpu, device = self.gpu, kwargs.get("device")
        if func in FROM_TENSORS and args and isinstance(args[0], torch.Tensor):
            kwargs.pop("device", None)
            out = func(*args, **kwargs)
            return out if device is None else self.moved(torch.Tensor.to, [out, device], {})
        if device is not None and torch.device(device).type == "meta":
            return func(*args, **kwargs)
        if is_cuda(device):
            kwargs["device"] = torch.device("cpu")
        generator = kwargs.get("generator")
        if generator is not None and is_cuda(device) != any(generator is x for x in gpu.generators):
            gpu.fault(f"a generator of another device than {device}")
        default = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
        mark = "cuda" if is_cuda(device if device is not None else default and default.device) else "cpu"
        if func in FROM_TENSORS and mark == "cuda":
            gpu.wait("a copy to the GPU")  # its memory is not pinned
        with gpu.factory(mark):
            out = func(*args, **kwargs)
        gpu.marks.put(out, mark)
        return out

    def moved(self, func, args: list, kwargs: dict):
        """`x.to(...)`, `x.cuda()`, `x.cpu()`: a copy where the device changes, for which the host waits."""
        gpu, x, target = self.gpu, args[0], {torch.Tensor.cuda: "cuda", torch.Tensor.cpu: "cpu"}.get(func)
        if target:
            args, kwargs = [x], {}
        for place, value in [*enumerate(args[1:], 1), *kwargs.items()]:
            if isinstance(value, torch.Tensor):
                target = gpu.marks.of(value) or "cpu"
            elif isinstance(value, str | torch.device) or (value.__class__ is int and place in (1, "device")):
                target = "cuda" if is_cuda(value) else torch.device(value).type
                (args if isinstance(place, int) else kwargs)[place] = torch.device(target.replace("cuda", "cpu"))
        out, mark = torch.Tensor.to(*args, **kwargs) if len(args) > 1 or kwargs else x, gpu.marks.of(x)
        if target in (None, "meta", mark):
            return out
        gpu.wait(f"a copy to the {'CPU' if target == 'cpu' else 'GPU'}")
        if mark and out.untyped_storage()._cdata == x.untyped_storage()._cdata:
            out = out.clone()
        gpu.marks.put(out, target)
        return out


class PretendedCuda(contextlib.ExitStack):
    """The device; see the module.

    Attributes:
        faults, waits: {line: count}.
        launches: kernels.
    """

    def __init__(self):
        super().__init__()
        self.marks, self.local, self.generators = Marks(), threading.local(), []
        self.launches, self.faults, self.waits = 0, collections.Counter(), collections.Counter()
        self.graph = None  # the one that is recorded

    def fault(self, text: str) -> None:
        """Note what CUDA would refuse."""
        self.faults[f"{asking_line()}: {text}"] += 1

    def wait(self, text: str) -> None:
        """Note that the host waits, which it may not while a graph is recorded."""
        if self.graph:
            self.fault(f"{text} in a graph")
        self.waits[f"{asking_line()}: {text}"] += 1

    def factory_mark(self) -> str | None:
        """The mark of what a factory makes in this thread just now."""
        return getattr(self.local, "mark", None)

    @contextlib.contextmanager
    def factory(self, mark: str):
        """While a factory runs."""
        before, self.local.mark = self.factory_mark(), mark
        try:
            yield
        finally:
            self.local.mark = before

    def patch(self, owner, name: str, value) -> None:
        """Replace a name until the end."""
        before = vars(owner).get(name, self)
        setattr(owner, name, value)
        self.callback(lambda: delattr(owner, name) if before is self else setattr(owner, name, before))

    def __enter__(self):
        super().__enter__()
        for name in LOOK_AS_THEY_LOAD:
            importlib.import_module(name)

        def device(x):
            real = REAL_DEVICE.__get__(x)
            return CUDA if real.type == "cpu" and self.marks.of(x) == "cuda" else real

        self.patch(torch.Tensor, "device", property(device))
        self.patch(torch.Tensor, "is_cuda", property(lambda x: x.device.type == "cuda"))
        for name, answer in (QUERIES | dict.fromkeys(COMMANDS.split(), lambda *_: None)).items():
            for module in (torch.cuda, torch.cuda.random):  # transformers asks the second
                if hasattr(module, name):
                    self.patch(module, name, answer)
        stream = type("Stream", (), {"wait_stream": lambda stream, other: None})
        for name in ("Stream", "current_stream"):
            self.patch(torch.cuda, name, stream)
        self.patch(torch.cuda, "stream", contextlib.nullcontext)
        self.patch(torch.cuda, "CUDAGraph", lambda: Graph(self))
        self.patch(torch.cuda, "graph", lambda graph, **_: graph)
        self.patch(torch.accelerator, "current_accelerator", lambda *_, **__: torch.device("cuda"))
        self.patch(torch.optim.Optimizer, "_accelerator_graph_capture_health_check", lambda *_: None)
        self.patch_autocast()
        self.patch_sources()
        self.enter_context(Rules(self))
        self.enter_context(Calls(self))
        return self

    def patch_autocast(self) -> None:
        """Autocast of cuda is the CPU's."""
        start = torch.amp.autocast_mode.autocast.__init__

        @functools.wraps(start)
        def init(this, device_type, *args, **kwargs):
            start(this, "cpu" if device_type == "cuda" else device_type, *args, **kwargs)

        self.patch(torch.amp.autocast_mode.autocast, "__init__", init)
        for name in ("is_autocast_enabled", "get_autocast_dtype", "set_autocast_enabled", "set_autocast_dtype"):
            real = getattr(torch, name)
            mapped = functools.partial(lambda real, *args: real(*("cpu" if x == "cuda" else x for x in args)), real)
            self.patch(torch, name, mapped)

    def patch_sources(self) -> None:
        """Generators, loaded tensors, and the threads that a program starts, where modes do not reach by themselves."""
        gpu, load, generator, run = self, torch.load, torch.Generator, threading.Thread.run

        def loaded(file, map_location=None, **kwargs):
            out = load(file, map_location="cpu", **kwargs)
            for x in tensors(out):
                self.marks.put(
                    x, "cuda" if isinstance(map_location, str | torch.device) and is_cuda(map_location) else "cpu"
                )
            return out

        class Generator(generator):  # a class: annotations of modules that load later name it
            def __new__(cls, device="cpu"):
                made = generator()
                gpu.generators += [made] if is_cuda(device) else []
                return made

        def watched(thread):
            with Rules(self), Calls(self):
                run(thread)

        function = torch.autograd.function.BackwardCFunction
        backward = function.apply

        def own_backward(node, *gradients):
            with Calls(self):  # the engine runs a custom function's backward without it
                return backward(node, *gradients)

        self.patch(function, "apply", own_backward)

        self.patch(torch, "load", loaded)
        self.patch(torch, "Generator", Generator)
        self.patch(threading.Thread, "run", watched)
