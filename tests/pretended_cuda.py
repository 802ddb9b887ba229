"""A GPU for tests on machines that have none: what it holds lies in CPU tensors, and CUDA's rules are kept.

Inside `pretended_cuda()` tensors can be made on, and moved to, devices called `cuda`. They say that they are there,
have no values that the CPU could read, and meet no CPU tensors but where CUDA allows it. Every operation on them runs
on the CPU. What would make a process wait for a GPU is counted. A copy that is not waited for has not arrived until
something is, and page-locked memory must stay as it is until then.

torch itself takes them to be on its device "lazy", of which a build for CPUs has everything but operations: without
CUDA it cannot name the place of a gradient on a GPU. Collective operations are gloo's, on the values. Nothing is shown
of CUDA's own kernels: which there are for a type or a shape (but for attention's, by rules written down here), what
they round to, how fast they are and what they leave of the memory; nor of streams, on one of which all happens.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock
from weakref import WeakSet

import torch
from torch import Tensor, distributed
from torch.autograd.grad_mode import _unsafe_preserve_version_counter as _same_version
from torch.distributed.fsdp._fully_shard import _fsdp_param
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

CAPABILITY = (9, 0)
MULTIPROCESSORS = 132
MEMORY_SEEN = 1 << 30

_aten: Any = torch.ops.aten
_OF_OTHERS = torch._C.DispatchKey.CompositeImplicitAutograd
_CPU = torch.device("cpu")
_MANY = (list, tuple)
_STAND_IN = "lazy"
_SET_DATA = vars(torch._C.TensorBase)["data"].__set__
_parse_to = torch._C._nn._parse_to  # type: ignore[attr-defined]
_WAITING = {
    getattr(_aten, name)
    for name in ("_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "unique_dim", "bincount")
}
"""Operations whose result, or the size of it, the process has to know before it goes on."""
_INDEXING = {_aten.index, _aten.index_put, _aten.index_put_, _aten._index_put_impl_}
_WITHOUT_KERNEL = {_aten.empty, _aten.empty_strided, _aten.empty_like, _aten._unsafe_view, _aten.resize_}
_TAKES_SCALARS = {_aten.where, _aten.masked_fill, _aten.masked_fill_, _aten.fill, _aten.fill_}
_WITHOUT_ORDER = {_aten.cumsum, _aten.kthvalue, _aten.put_, _aten.histc, _aten.median}
"""Of floating point numbers, CUDA has no kernel for these that always adds in the same order."""


class PretendedTensor(Tensor):
    """values: on the CPU; place: where it says that it is."""

    values: Tensor
    place: torch.device
    gpu: "PretendedGPU"

    @staticmethod
    def __new__(cls, values: Tensor, place: torch.device, gpu: "PretendedGPU") -> "PretendedTensor":
        make: Any = Tensor._make_wrapper_subclass  # type: ignore[attr-defined]
        options = {"dtype": values.dtype, "device": torch.device(_STAND_IN, place.index)}
        made = make(cls, values.shape, strides=values.stride(), storage_offset=values.storage_offset(), **options)
        made.values, made.place, made.gpu = values, place, gpu
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.place

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    def get_device(self) -> int:
        return self.place.index

    def data_ptr(self) -> int:
        return self.values.data_ptr()

    def numpy(self, *, force: bool = False) -> Any:
        if force:
            return self.detach().cpu().numpy()
        raise TypeError(f"can't convert {self.place} device type tensor to numpy. Use Tensor.cpu() first")

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return self.numpy()

    def __repr__(self, **kwargs: Any) -> str:  # type: ignore[override]
        return f"PretendedTensor({self.values}, device={self.place})"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        gpu = next(one.gpu for one in _leaves((*args, *(kwargs or {}).values())) if isinstance(one, PretendedTensor))
        return gpu.run(func, args, kwargs or {})


_OWN = (PretendedTensor,)
_RENAMED = {Tensor.to, Tensor.cuda, scaled_dot_product_attention, _SET_DATA, torch.tensor, torch.as_tensor}
"""What is done otherwise here, also where no device is named."""


class _Names(TorchFunctionMode):
    """Calls the device in every call what torch takes it to be."""

    def __init__(self, gpu: "PretendedGPU") -> None:
        super().__init__()
        self._gpu = gpu

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        if (types == _OWN or not types) and not kwargs and func not in _RENAMED:
            with torch._C.DisableTorchFunctionSubclass():  # as PretendedTensor would, only sooner
                return func(*args)
        kwargs = kwargs or {}
        if func in (Tensor.to, Tensor.cuda):
            return _moved(args[0], args[1:] if func is Tensor.to else ("cuda", *args[1:]), kwargs)
        if func is scaled_dot_product_attention:
            self._gpu.attend(*args, **kwargs)
        if func == _SET_DATA and isinstance(args[1], PretendedTensor) and type(args[0]) is Tensor:
            return torch.utils.swap_tensors(*args)
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") is not None:
            return _moved(func(*args, **{**kwargs, "device": None}), (kwargs["device"],), {})
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": _named(kwargs["device"])}
        return func(*args, **kwargs)


def _named(device: Any) -> torch.device:
    wanted = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    return torch.device(_STAND_IN, wanted.index or 0) if wanted.type == "cuda" else wanted


def _moved(tensor: Tensor, args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
    """`Tensor.to`, which gives the tensor itself where it has nothing to change."""
    kwargs = dict(kwargs)
    more: dict[str, Any] = {"copy": bool(kwargs.pop("copy", False))}
    place, dtype, more["non_blocking"], layout = _parse_to(*args, **kwargs)
    if layout is not None:
        more["memory_format"] = layout
    dtype = dtype or tensor.dtype
    with torch._C.DisableTorchFunctionSubclass():
        if place is None or _named(place) == _named(tensor.device):
            return Tensor.to(tensor, dtype, **more)
        return Tensor.to(tensor, _named(place), dtype, **more)


class PretendedGPU(TorchDispatchMode):
    """waits: why a process waited for the device -> how often; operations: how many the device was given; launches:
    those of them that are kernels or copies, a graph being one; score_tables: how often attention had no kernel but the
    one that writes down all scores; before_memory: called with the name of each operation that needs memory for its
    result, and may raise what a GPU would; free_memory: bytes that the device says it has; tape: of a graph that is
    being captured."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()
        self.operations = self.launches = 0
        self.score_tables = 0
        self.before_memory: Callable[[str], None] = lambda name: None
        self.free_memory = 1 << 34
        self.tape: list[_Noted] | None = None
        self._pinned: set[StorageWeakRef] = set()
        self._arriving: list[tuple[Tensor, Tensor]] = []
        self._leaving: list[tuple[Tensor, Tensor]] = []

    def wait(self, why: str = "synchronize") -> None:
        """All that was begun is over."""
        if self.tape is not None:
            raise RuntimeError(f"CUDA error: operation not permitted when stream is capturing ({why})")
        self.waits[why] += 1
        arriving, leaving = self._arriving, self._leaving
        self._arriving, self._leaving = [], []
        for target, values in arriving:
            _arrive(target, values)
        if any(not torch.equal(_bits(source), _bits(values)) for source, values in leaving):
            raise AssertionError("page-locked memory was written to while the device was still reading it")

    def attend(self, q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **more: Any) -> None:
        """By torch's documentation of `enable_gqa`: only flash attention takes shared heads."""
        shared, flash = q.shape[-3] != k.shape[-3], attn_mask is None and q.dtype != torch.float32
        self.score_tables += q.is_cuda and shared and not flash

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and to say so again in every operation takes as long as the operation

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        if types and types != _OWN and any(issubclass(one, DTensor) for one in types):
            return NotImplemented  # it computes with what it is made of
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if _is_made_of_others(func):
            with self:
                return func._op_dk(_OF_OTHERS, *args, **kwargs)
        leaves = _leaves((*args, *kwargs.values()) if kwargs else args)
        own = [one for one in leaves if type(one) is PretendedTensor]
        asked = kwargs.get("device")
        if asked is None:
            place = own[0].place if own else None
        else:
            place = torch.device("cuda", asked.index or 0) if asked.type in (_STAND_IN, "cuda") else None
        if not own and place is None:
            return self._on_host(func, args, kwargs)
        kind = _kind(func)
        self.operations += 1
        self.launches += kind.launches and self.tape is None
        if kind.makes:
            self.before_memory(kind.name)
        if self.tape is not None and _crosses(func, own, place):
            raise RuntimeError("a copy between the CPU and the device is captured: it would be done once")
        if func is _aten._to_copy.default and not (own and place):
            return self._carried(args[0], place, kwargs)
        if func is _aten.copy_.default and len(own) == 1:
            return self._copied(args[0], args[1], bool(args[2] if len(args) > 2 else kwargs.get("non_blocking")))
        self._check(func, kind, args, kwargs, leaves, own)
        return self._compute(func, args, kwargs, own, place)

    def _compute(self, func: Any, args: Any, kwargs: dict[str, Any], own: Any, place: torch.device | None) -> Any:
        if place is not None and kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": _CPU}
        compute = _with_float32_sums if func is _aten.mm.dtype else func
        values = _values(args), {name: _values(one) for name, one in kwargs.items()}
        found = compute(*values[0], **values[1])
        if self.tape is not None and not func.is_view:  # a view is one for ever
            self.tape.append(_Noted(compute, *values, found))
        for one in own:
            assert one.shape == one.values.shape, f"{func} changes the shape of a tensor, which is not pretended"
        if place is None:
            return found
        outer = {id(one.values): one for one in own}

        ordinary = func.is_view and not own[0].is_inference()

        def told(tensor: Tensor) -> Tensor:
            known = outer.get(id(tensor))
            return PretendedTensor(tensor, place, self) if known is None else known

        with torch.inference_mode(False) if ordinary else nullcontext():  # a view is what it is a view of
            return _changed(found, told)

    # What a GPU refuses, and what it is waited for

    def _check(self, func: Any, kind: "_Kind", args: Any, kwargs: dict[str, Any], leaves: Any, own: Any) -> None:
        if own:
            self._check_places(func, kind, args, leaves, own)
        if kind.draws and any(isinstance(one, torch.Generator) and one.device.type == "cpu" for one in leaves):
            raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
        undetermined = kind.has_no_order and own and own[0].is_floating_point()
        if undetermined and torch.are_deterministic_algorithms_enabled():
            raise RuntimeError(f"{kind.name} does not have a deterministic implementation")
        sized_by_values = func is _aten.repeat_interleave.Tensor and kwargs.get("output_size") is None
        if kind.waits or sized_by_values:
            self.wait(kind.name)

    def _check_places(self, func: Any, kind: "_Kind", args: Any, leaves: Any, own: Any) -> None:
        if len({one.place for one in own}) > 1:
            raise RuntimeError(f"Expected all tensors to be on the same device ({func})")
        others = [one for one in leaves if type(one) is not PretendedTensor and isinstance(one, Tensor)]
        if kind.indexes and isinstance(args[0], PretendedTensor):
            indices = [one for one in args[1] if one is not None]
            self._note_indices(indices, args[2] if len(args) > 2 else None)
            others = [one for one in others if not any(one is index for index in indices)]
        if any(one.dim() or not kind.takes_scalars for one in others) or (others and others[0] is args[0]):
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, {own[0].place} and "
                f"cpu! ({func})"
            )

    def _note_indices(self, indices: Sequence[Tensor], value: Tensor | None) -> None:
        if any(not isinstance(one, PretendedTensor) for one in indices):
            self.wait("an index on the CPU")
        if any(one.dtype == torch.bool for one in indices) and (value is None or value.numel() > 1):
            self.wait("an index by a mask")

    # Between the device and the CPU's memory

    def _on_host(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if func is _aten.is_pinned.default:
            return self._is_pinned(args[0])
        if func is _aten._pin_memory.default:
            return self._pin(args[0].clone())
        if kwargs.get("pin_memory"):
            return self._pin(func(*args, **{**kwargs, "pin_memory": False}))
        return func(*args, **kwargs)

    def _pin(self, tensor: Tensor) -> Tensor:
        self._pinned = {one for one in self._pinned if not one.expired()}
        self._pinned.add(StorageWeakRef(tensor.untyped_storage()))
        return tensor

    def _is_pinned(self, tensor: Tensor) -> bool:
        return StorageWeakRef(tensor.untyped_storage()) in self._pinned

    def _carried(self, tensor: Tensor, place: torch.device | None, options: dict[str, Any]) -> Tensor:
        """From the CPU to the device, or back, into memory of its own."""
        at_once = not options.get("non_blocking")
        options = {**options, "device": _CPU, "non_blocking": False, "pin_memory": False}
        if place is not None:
            return PretendedTensor(_aten._to_copy(self._sent(tensor, at_once), **options), place, self)
        assert isinstance(tensor, PretendedTensor)
        values = _aten._to_copy(tensor.values, **options)
        target = torch.empty_like(values)
        self._receive(target if at_once else self._pin(target), values, at_once)
        return target

    def _copied(self, target: Tensor, source: Tensor, non_blocking: bool) -> Tensor:
        if isinstance(target, PretendedTensor):
            target.values.copy_(self._sent(source, not non_blocking))
        else:
            assert isinstance(source, PretendedTensor)
            self._receive(target, source.values.to(target.dtype, copy=True), not non_blocking)
        return target

    def _sent(self, source: Tensor, at_once: bool) -> Tensor:
        """What a CPU tensor has when the device reads it, which is after what the device wrote there."""
        mine = [values for target, values in self._arriving if target.data_ptr() == source.data_ptr()]
        values = mine[-1].view_as(source) if mine else source
        if at_once or not self._is_pinned(source):
            self.wait("a copy to the device")
        else:
            self._leaving += [] if mine else [(source, source.clone())]
        return values

    def _receive(self, target: Tensor, values: Tensor, at_once: bool) -> None:
        self._arriving.append((target, values.expand_as(target)))
        if at_once or not self._is_pinned(target):
            self.wait("a copy to the CPU")
        else:
            target.fill_(torch.nan if target.is_floating_point() else 77)


def _leaves(values: Iterable[Any]) -> list[Any]:
    found: list[Any] = []
    for one in values:
        if isinstance(one, _MANY):
            found += _leaves(one)
        else:
            found.append(one)
    return found


def _changed(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """With every tensor in it changed."""
    if isinstance(value, Tensor):
        return change(value)
    return type(value)([_changed(one, change) for one in value]) if isinstance(value, _MANY) else value


def _values(value: Any) -> Any:
    """What lies on the CPU of every tensor in it."""
    if type(value) is PretendedTensor:
        return value.values
    return type(value)([_values(one) for one in value]) if isinstance(value, _MANY) else value


def _crosses(func: Any, own: Sequence[Tensor], place: torch.device | None) -> bool:
    """Whether an operation carries numbers between the CPU and the device."""
    return (func is _aten._to_copy.default and not (own and place)) or (func is _aten.copy_.default and len(own) == 1)


def _with_float32_sums(one: Tensor, other: Tensor, dtype: torch.dtype) -> Tensor:
    """`torch.mm(..., out_dtype=torch.float32)`, of which a CPU has no kernel."""
    return torch.mm(one.to(dtype), other.to(dtype))


class _Kind(NamedTuple):
    """What is known of an operation before it is done. makes: its result is in memory of its own; draws: it may be told
    a generator."""

    name: str
    launches: bool
    makes: bool
    waits: bool
    indexes: bool
    takes_scalars: bool
    has_no_order: bool
    draws: bool


@cache
def _kind(func: Any) -> _Kind:
    packet = func.overloadpacket
    return _Kind(
        str(packet),
        launches=not func.is_view and packet not in _WITHOUT_KERNEL,
        makes=all(one.alias_info is None for one in func._schema.returns),
        waits=packet in _WAITING,
        indexes=packet in _INDEXING,
        takes_scalars=torch.Tag.pointwise in func.tags or packet in _TAKES_SCALARS | _INDEXING,
        has_no_order=packet in _WITHOUT_ORDER,
        draws=any("Generator" in str(one.type) for one in func._schema.arguments),
    )


@cache
def _is_made_of_others(func: Any) -> bool:
    """Inference mode asks for these as a whole, and has no kernel for them."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), _OF_OTHERS)


def _arrive(target: Tensor, values: Tensor) -> None:
    if target.is_inference():
        with torch.inference_mode():
            target.copy_(values)
    else:
        with _same_version(target):
            target.copy_(values)


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8) if tensor.dim() else tensor[None].view(torch.uint8)


class _Stream:
    """The one on which everything happens in order, or a place in it."""

    _gpu: PretendedGPU

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def synchronize(self) -> None:
        self._gpu.wait()

    def record_event(self, event: Any = None) -> Any:
        return event or self

    def record(self, stream: Any = None) -> None: ...
    def wait_stream(self, stream: Any) -> None: ...
    def wait_event(self, event: Any) -> None: ...


class _Graph:
    """Operations that are noted down and done again, on the same tensors, when it is replayed."""

    _gpu: PretendedGPU

    def __init__(self) -> None:
        self._tape: list[_Noted] = []

    @contextmanager
    def capturing(self, pool: "_Pool | None") -> Iterator[None]:
        """What is computed meanwhile has no values before a replay."""
        if pool is not None:
            pool.join(self)
        self._gpu.wait("a capture")
        self._gpu.tape = self._tape
        try:
            yield
        finally:
            self._gpu.tape = None
        with _values_alone():
            for one in self._tape:
                for made in one.made():
                    made.fill_(torch.nan if made.is_floating_point() else 77)

    def replay(self) -> None:
        self._gpu.operations += 1
        self._gpu.launches += 1
        with _values_alone():
            for one in self._tape:
                one.again()


@contextmanager
def _values_alone() -> Iterator[None]:
    """Of tensors on the CPU, which nobody has to look at."""
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        yield


class _Pool:
    """What graphs share memory in; as torch, it takes none any more once all of them are gone (seen on an H100)."""

    def __init__(self) -> None:
        self._graphs = WeakSet[_Graph]()
        self._taken = False

    def join(self, graph: _Graph) -> None:
        if self._taken and not self._graphs:
            raise RuntimeError("it->second->use_count > 0 INTERNAL ASSERT FAILED, please report a bug to PyTorch.")
        self._taken = True
        self._graphs.add(graph)


class _Noted(NamedTuple):
    """An operation on values, and what it gave."""

    compute: Callable[..., Any]
    args: Any
    kwargs: dict[str, Any]
    found: Any

    def made(self) -> list[Tensor]:
        """Results that are in memory of their own."""
        known = {one.untyped_storage().data_ptr() for one in _leaves(self.args) if isinstance(one, Tensor)}
        results = [one for one in _leaves((self.found,)) if isinstance(one, Tensor)]
        return [one for one in results if one.untyped_storage().data_ptr() not in known]

    def again(self) -> None:
        results = _leaves((self.compute(*self.args, **self.kwargs),))
        for one, result in zip(_leaves((self.found,)), results, strict=True):
            if isinstance(one, Tensor) and one.data_ptr() != result.data_ptr():
                one.copy_(result)


def _with_gloo(backend: str, *args: Any, init: Any = distributed.init_process_group, **kwargs: Any) -> None:
    """Collective operations on the values."""
    init(backend.replace("nccl", "gloo"), *args, **kwargs)


@contextmanager
def pretended_cuda(count: int = 1) -> Iterator[PretendedGPU]:
    """Inside, torch says that there are `count` GPUs, which are one and the same."""
    gpu = PretendedGPU()
    own_stream = type("Stream", (_Stream,), {"_gpu": gpu})  # a class, since annotations name it
    functions: dict[str, Any] = {
        "_lazy_init": lambda: None,
        "_initialized": True,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: count,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "device": lambda device: nullcontext(),
        "get_device_name": lambda device=None: "NVIDIA Pretended",
        "get_device_capability": lambda device=None: CAPABILITY,
        "get_device_properties": lambda device=None: SimpleNamespace(multi_processor_count=MULTIPROCESSORS),
        "synchronize": lambda device=None: gpu.wait(),
        "empty_cache": lambda: None,
        "max_memory_allocated": lambda device=None: MEMORY_SEEN,
        "mem_get_info": lambda device=None: (gpu.free_memory, gpu.free_memory),
        "get_rng_state": lambda device="cuda": torch.arange(16, dtype=torch.uint8),
        "set_rng_state": lambda state, device="cuda": _check_random_state(state),
        "CUDAGraph": type("CUDAGraph", (_Graph,), {"_gpu": gpu}),
        "graph": lambda graph, pool=None: graph.capturing(pool),
        "graph_pool_handle": _Pool,
        "current_stream": lambda device=None: own_stream(),
        "stream": lambda stream: nullcontext(),
        "Stream": own_stream,
        "Event": own_stream,
    }
    with ExitStack() as stack:
        stack.enter_context(mock.patch.multiple(torch.cuda, **functions))
        # vLLM's build for CPUs puts one in its place that does nothing, for the rest of the process.
        stack.enter_context(mock.patch.object(Tensor, "pin_memory", torch._C.TensorBase.pin_memory))
        stack.enter_context(mock.patch.object(distributed, "init_process_group", _with_gloo))
        for name in ("alloc_storage", "free_storage"):
            stack.enter_context(mock.patch.object(_fsdp_param, name, lambda tensor: None))
        stack.enter_context(mock.patch.object(DTensor, "device", property(lambda one: one._local_tensor.device)))
        stack.enter_context(gpu)
        stack.enter_context(_Names(gpu))
        yield gpu


def _check_random_state(state: Tensor) -> None:
    assert state.dtype == torch.uint8 and state.device.type == "cpu" and state.tolist() == list(range(16))
