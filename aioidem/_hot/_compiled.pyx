# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=False
# cython: freethreading_compatible=True
"""The compiled twin of the other files here: the same names, the same bytes, results and errors.

Each function that encodes or hashes takes what a producer's records have: exact bytes, exact ints of 64 bits, headers in a
tuple of tuples. Anything else, right or wrong, is handed to the pure twin, whose result or error
is then the answer: this file has no error message of its own, and none can differ.

Invariants: nothing here is reached by two threads at once, except for objects that cannot change
(bytes, str, tuples) and lists that are iterated as Python iterates them. No reference is borrowed
across a call that can run Python code.

Rejected: two passes, sizes first and then the bytes, into a result of the right length (an attribute
could give another value in the second pass, and reading attributes is most of the time).
"""

cimport cython
from cpython.array cimport array, clone
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from collections import deque

from aioidem._hot import columns as _columns
from aioidem._hot import encoding as _encoding
from aioidem._hot import hashing as _hashing
from aioidem._hot import record as _record


cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    int64_t PyLong_AsLongLongAndOverflow(object number, int *overflow) except? -1
    bint PyBytes_CheckExact(object) noexcept
    bint PyLong_CheckExact(object) noexcept
    bint PyTuple_CheckExact(object) noexcept
    bint PyUnicode_CheckExact(object) noexcept
    double PyFloat_AsDouble(object) except? -1.0


cdef extern from "math.h":
    long long llrint(double) noexcept nogil


cdef tuple _NOTHING = ()
cdef array _INTS = array("i")
cdef array _LONGS = array("q")
cdef int _MOST_PLACES = 1_000_000
cdef object _BinaryColumn = _columns.BinaryColumn
cdef Py_ssize_t _FIRST_CAPACITY = 32768
cdef Py_ssize_t MAX_OVERHEAD = _encoding.MAX_RECORD_OVERHEAD
cdef int64_t LOOKED = _record.LOOKED


# --- sections that grow -------------------------------------------------------------------------


cdef struct Section:
    uint8_t *start
    Py_ssize_t used
    Py_ssize_t capacity


cdef int reserve(Section *section, Py_ssize_t more) except -1:
    """Make room for so many bytes after those that are used."""
    cdef Py_ssize_t capacity = section.capacity
    cdef void *moved
    if section.used + more <= capacity:
        return 0
    while capacity < section.used + more:
        capacity *= 2
    moved = PyMem_Realloc(section.start, capacity)
    if moved == NULL:
        raise MemoryError
    section.start = <uint8_t *> moved
    section.capacity = capacity
    return 0


cdef int begin_section(Section *section) except -1:
    section.used = 0
    section.capacity = _FIRST_CAPACITY
    section.start = <uint8_t *> PyMem_Malloc(section.capacity)
    if section.start == NULL:
        raise MemoryError
    return 0


# --- varints and what has a length ---------------------------------------------------------------


cdef inline uint64_t zigzag(int64_t number) noexcept nogil:
    return (<uint64_t> number << 1) ^ <uint64_t> (number >> 63)


cdef inline Py_ssize_t varint_size(int64_t number) noexcept nogil:
    cdef uint64_t groups = zigzag(number)
    cdef Py_ssize_t size = 1
    while groups >= 0x80:
        groups >>= 7
        size += 1
    return size


cdef inline int64_t encoded_size(int64_t payload, int64_t offset, int64_t delta) noexcept nogil:
    """Return the size of a record with its length field, which the callers keep from overflowing."""
    payload += 1 + varint_size(delta) + varint_size(offset)
    return payload + varint_size(payload)


cdef inline uint8_t *put_varint(uint8_t *at, int64_t number) noexcept nogil:
    cdef uint64_t groups = zigzag(number)
    while groups >= 0x80:
        at[0] = <uint8_t> (groups | 0x80)
        groups >>= 7
        at += 1
    at[0] = <uint8_t> groups
    return at + 1


cdef inline uint8_t *put(uint8_t *at, const char *data, Py_ssize_t size) noexcept nogil:
    """Write a length and so many bytes."""
    at = put_varint(at, size)
    memcpy(at, data, size)
    return at + size


cdef inline bint is_data(object data) noexcept:
    return data is None or PyBytes_CheckExact(data)


cdef inline Py_ssize_t data_size(object data) noexcept:
    """Return the size of a key or value, which `is_data`, with its length."""
    if data is None:
        return 1
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    return varint_size(size) + size


cdef inline uint8_t *put_data(uint8_t *at, object data) noexcept:
    if data is None:
        at[0] = 1
        return at + 1
    return put(at, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


cdef Py_ssize_t headers_size(tuple headers) except -2:
    """Return the size of all headers with their count, or -1 if the pure twin must look at them."""
    cdef Py_ssize_t count = PyTuple_GET_SIZE(headers), size = varint_size(count), length = 0, i
    cdef object header, name, value
    for i in range(count):
        header = <object> PyTuple_GET_ITEM(headers, i)
        if not PyTuple_CheckExact(header) or PyTuple_GET_SIZE(header) != 2:
            return -1
        name = <object> PyTuple_GET_ITEM(header, 0)
        value = <object> PyTuple_GET_ITEM(header, 1)
        if not PyUnicode_CheckExact(name) or not is_data(value):
            return -1
        try:
            PyUnicode_AsUTF8AndSize(name, &length)
        except UnicodeError:
            return -1
        size += varint_size(length) + length + data_size(value)
    return size


cdef uint8_t *put_headers(uint8_t *at, tuple headers) noexcept:
    """Write headers of which `headers_size` has returned the size."""
    cdef Py_ssize_t count = PyTuple_GET_SIZE(headers), length = 0, i
    cdef const char *name
    cdef object header
    at = put_varint(at, count)
    for i in range(count):
        header = <object> PyTuple_GET_ITEM(headers, i)
        name = PyUnicode_AsUTF8AndSize(<object> PyTuple_GET_ITEM(header, 0), &length)
        at = put(at, name, length)
        at = put_data(at, <object> PyTuple_GET_ITEM(header, 1))
    return at


cdef inline bint is_int64(object number, int64_t *found) except -1:
    cdef int overflow = 0
    if not PyLong_CheckExact(number):
        return False
    found[0] = PyLong_AsLongLongAndOverflow(number, &overflow)
    return overflow == 0


# --- records on their way ------------------------------------------------------------------------


@cython.auto_pickle(False)
cdef class RecordFields:
    """One record that waits for its outcome.

    See `record.RecordFields`.
    """

    __slots__ = (
        "deadline", "generation", "group", "headers", "key", "ordinal", "partition", "queued_at",
        "size", "timestamp_ms", "value",
    )

    cdef public object key
    cdef public object value
    cdef public object headers
    cdef public object partition
    cdef public object group
    cdef public int64_t timestamp_ms
    cdef public int64_t size
    cdef public int64_t generation
    cdef public int64_t ordinal
    cdef public double deadline
    cdef public double queued_at

    def __init__(self, key, value, headers, timestamp_ms, partition, size, group=None):
        self.key = key
        self.value = value
        self.headers = headers
        self.timestamp_ms = timestamp_ms
        self.partition = partition
        self.size = size
        self.group = group
        self.deadline = self.queued_at = 0.0
        self.generation = self.ordinal = 0


@cython.auto_pickle(False)
cdef class DeliveryFields(RecordFields):
    """One record that waits for its outcome, with the attributes that serve its caller.

    See `record.DeliveryFields`.
    """

    __slots__ = (
        "_callbacks", "_context", "_looking", "_outcome", "_place", "_result", "_siblings", "_waiter",
    )

    cdef public object _callbacks
    cdef public object _context
    cdef public object _outcome
    cdef public object _result
    cdef public object _siblings
    cdef public object _waiter
    cdef public int64_t _looking
    cdef public int64_t _place

    def __init__(
        self, key, value, headers, timestamp_ms, partition, size, context, siblings=None
    ):
        self.key = key
        self.value = value
        self.headers = headers
        self.timestamp_ms = timestamp_ms
        self.partition = partition
        self.size = size
        self._context = context
        self._siblings = siblings

    def done(self):
        """Return whether the outcome is known."""
        return self._outcome is not None

    def exception(self):
        """Return the error that the record failed with; None if it has not failed."""
        outcome = self._outcome
        if outcome is not None and outcome.error is None:
            return None
        return self._failure()

    def add_done_callback(self, callback):
        """Call `callback(delivery)` when the outcome is known, or now if it is known already.

        Args:
            callback: Must not block. It may call `send_nowait`; its exceptions are logged.

        Raises:
            WrongLoopError: The record is pending, and the call comes from another thread or event
                loop than the producer's.
            ProducerClosed: The record is pending, and the producer's event loop was closed.
        """
        if self._outcome is not None:
            self._look()
            run_callback(self, callback)
            return
        home = self._context.home
        try:
            here = home.running_loop() is home.loop
        except RuntimeError:
            here = False
        if not here:
            home.check(False)
        self._looking = LOOKED
        self._add(callback)

    def _add(self, callback):
        before = self._callbacks
        if before is None:
            odd = callback is None or type(callback) is tuple
            self._callbacks = (callback,) if odd else callback
        else:
            several = before if type(before) is tuple else (before,)
            self._callbacks = (*several, callback)

    def settle(self, outcome, place):
        """See `record.DeliveryFields.settle`."""
        take_outcome(self, outcome, place, outcome.error)


cdef int take_outcome(
    DeliveryFields delivery, object outcome, int64_t place, object error
) except -1:
    cdef object waiter, siblings = delivery._siblings, callbacks, ending = None
    delivery._place = place
    delivery._outcome = outcome
    delivery.key = delivery.value = None
    delivery.headers = _NOTHING
    if error is not None:
        delivery._count_if_unseen(outcome.topic, error)
    waiter = delivery._waiter
    if waiter is not None:
        delivery._waiter = None
        delivery._wake(waiter)
    if siblings is not None:
        delivery._siblings = None
        siblings.one_done()
    callbacks = delivery._callbacks
    if callbacks is not None:
        delivery._callbacks = None
        if PyTuple_CheckExact(callbacks):
            for callback in <tuple> callbacks:
                try:
                    run_callback(delivery, callback)
                except BaseException as raised:
                    ending = ending or raised
            if ending is not None:
                raise ending
        else:
            run_callback(delivery, callbacks)
    return 0


cdef int run_callback(DeliveryFields delivery, object callback) except -1:
    try:
        callback(delivery)
    except BaseException as raised:
        delivery._failed(raised)
    return 0


@cython.auto_pickle(False)
cdef class QueueFields:
    """The records of a partition that are not in a batch yet.

    See `fields.QueueFields`.
    """

    __slots__ = ("bytes", "records")

    cdef public object records
    cdef public int64_t bytes

    def __init__(self):
        self.records = deque()


@cython.auto_pickle(False)
cdef class StickyFields:
    """The partition that gets the records without a key.

    See `fields.StickyFields`.
    """

    __slots__ = ("left",)

    cdef public int64_t left


@cython.auto_pickle(False)
cdef class TargetFields:
    """Where the next record without a key goes.

    See `fields.TargetFields`.
    """

    __slots__ = ("queue", "state", "sticky")

    cdef public object state
    cdef public StickyFields sticky
    cdef public QueueFields queue

    def __init__(self, state, StickyFields sticky not None):
        self.state = state
        self.sticky = sticky
        self.queue = state.queue


@cython.auto_pickle(False)
cdef class BudgetFields:
    """The memory for records.

    See `fields.BudgetFields`.
    """

    __slots__ = ("limit", "used", "waiting")

    cdef public int64_t limit
    cdef public int64_t used
    cdef public int64_t waiting


@cython.auto_pickle(False)
cdef class Appender:
    """Numbers records, and queues those without a key on the partition that the last one went to.

    See `queueing.Appender`.
    """

    __slots__ = ("_effects", "_targets", "_timeout", "_wake", "generation", "ordinal")

    cdef public object _effects
    cdef public dict _targets
    cdef public object _wake
    cdef public double _timeout
    cdef public int64_t generation
    cdef public int64_t ordinal

    def __init__(self, timeout, effects, dict targets not None, wake):
        self._timeout = timeout
        self._effects = effects
        self._targets = targets
        self._wake = wake

    def append(self, topic, RecordFields record not None, double now):
        """See `queueing.Appender.append`."""
        return append_record(self, topic, record, now)

    @property
    def ended(self):
        """See `queueing.Appender.ended`."""
        return self._effects.fatal_error is not None

    def number(self, RecordFields record not None, double now):
        """See `queueing.Appender.number`."""
        number_record(self, record, now)


cdef void number_record(Appender appender, RecordFields record, double now) noexcept:
    record.deadline = now + appender._timeout
    record.generation = appender.generation
    appender.ordinal += 1
    record.ordinal = appender.ordinal


cdef bint append_record(
    Appender appender, object topic, RecordFields record, double now
) except -1:
    cdef object found = appender._targets.get(topic)
    cdef TargetFields target
    cdef QueueFields queue
    if found is None or record.key is not None or record.partition is not None:
        return False
    target = <TargetFields?> found
    if target.sticky.left <= 0:
        return False
    number_record(appender, record, now)
    target.sticky.left -= record.size
    queue = target.queue
    if not queue.records:
        appender._wake(target.state)
    record.queued_at = now
    queue.records.append(record)
    queue.bytes += record.size
    return True


@cython.auto_pickle(False)
cdef class PlainSends:
    """Queues records that are nothing but a short value, while there is room for them.

    See `queueing.PlainSends`.
    """

    cdef object _make, _context, _running_loop, _wall_clock, _life, _release, _append, _wakeup
    cdef BudgetFields _budget
    cdef dict _topics
    cdef Appender _appender
    cdef int64_t _most, _empty, _memory

    def __init__(
        self, make, context, running_loop, wall_clock, life, BudgetFields budget not None, release, append,
        Appender appender not None, dict topics not None, wakeup, most, empty, memory,
    ):
        if not issubclass(make, DeliveryFields):
            raise TypeError("make must be a class of deliveries")
        self._make = make
        self._context = context
        self._running_loop = running_loop
        self._wall_clock = wall_clock
        self._life = life
        self._budget = budget
        self._release = release
        self._append = append
        self._appender = appender
        self._topics = topics
        self._wakeup = wakeup
        self._most = most
        self._empty = empty
        self._memory = memory

    def queue(self, topic, value):
        """See `queueing.PlainSends.queue`."""
        cdef int64_t size, charge
        cdef DeliveryFields record
        cdef object life = self._life, now
        cdef BudgetFields budget = self._budget
        try:
            if self._running_loop() is not life.open_loop or topic not in self._topics:
                return None
        except (RuntimeError, TypeError):
            return None
        if not PyBytes_CheckExact(value):
            return None
        size = PyBytes_GET_SIZE(value)
        if size > self._most:
            return None
        size += self._empty if size < 64 else self._empty + 1
        charge = size + self._memory
        if (
            budget.used + charge > budget.limit
            or budget.waiting
            or self._appender._effects.fatal_error is not None
        ):
            return None
        record = <DeliveryFields> DeliveryFields.__new__(self._make)
        record.value = value
        record.headers = _NOTHING
        record.timestamp_ms = llrint(PyFloat_AsDouble(self._wall_clock()) * 1000.0)
        record.size = size
        record._context = self._context
        now = life.clock()
        budget.used += charge
        try:
            if not append_record(self._appender, topic, record, now):
                self._append(topic, record, now)
        except BaseException:
            self._release(charge)
            raise
        if not self._wakeup.raised:
            self._wakeup.set()
        return record


def take_fitting(records, group, int64_t room, int64_t most, bint whole):
    """Take records from the head of a queue for one batch, at least one, and return their size.

    See `queueing.take_fitting`.
    """
    cdef int64_t size = 0, count = 0, more
    cdef list taken = []
    for record in records:
        if count == most or (<RecordFields?> record).group is not group:
            break
        more = (<RecordFields> record).size
        if size + more > room and count and not whole:
            break
        size += more
        count += 1
        taken.append(record)
    popleft = records.popleft
    for _ in range(count):
        popleft()
    return taken, size


def squeeze(
    records, list taken not None, int64_t size, int64_t room, int64_t most, int64_t overhead
):
    """Take further records from the head of a queue into a batch that only seems full.

    See `queueing.squeeze`.
    """
    cdef int64_t largest = 0, span = 0, longest, widest, more, each_takes, added = 0
    cdef int64_t count = len(taken)
    cdef RecordFields record = taken[0]
    cdef int64_t first = record.timestamp_ms
    cdef object group = record.group
    popleft = records.popleft
    for each in taken:
        record = <RecordFields?> each
        largest = max(largest, record.size)
        span = max(span, abs(record.timestamp_ms - first))
    while count < most and records:
        record = <RecordFields?> records[0]
        if record.group is not group:
            break
        more = record.size
        longest = max(largest, more)
        widest = max(span, abs(record.timestamp_ms - first))
        each_takes = encoded_size(longest, count + 1, widest) - longest
        if size + more + (count + 1) * (each_takes - overhead) > room:
            break
        largest = longest
        span = widest
        count += 1
        size += more
        added += more
        taken.append(popleft())
    return added


def total_size(records):
    """Return the sum of the records' `size`.

    See `settling.total_size`.
    """
    cdef int64_t total = 0
    for record in records:
        total += (<RecordFields?> record).size
    return total


def total_overhead(records, int64_t header_memory):
    """Return the bytes that the records take in memory besides their `size`.

    See `settling.total_overhead`.
    """
    cdef int64_t total = 0, memory = 0
    cdef object headers
    cdef type before = None
    for record in records:
        if type(record) is not before:
            before = type(record)
            memory = record.memory
        headers = (<RecordFields?> record).headers
        total += memory
        if headers is not _NOTHING:
            total += len(headers) * header_memory
    return total


def settle_each(records, outcome, int64_t begin, told):
    """Give an outcome to each record.

    See `settling.settle_each`.
    """
    cdef int64_t place = begin - 1
    cdef object error = outcome.error
    try:
        for record in records:
            place += 1
            if isinstance(record, DeliveryFields):
                take_outcome(<DeliveryFields> record, outcome, place, error)
            else:
                record.settle(outcome, place)
    finally:
        told(place + 1)


# --- records -------------------------------------------------------------------------------------


cdef inline bint append(
    Section *section, object key, object value, object headers, int64_t offset, int64_t delta
) except -1:
    """Append a record; return False, with nothing appended, if the pure twin must look at it."""
    cdef Py_ssize_t size, tail
    cdef uint8_t *at
    if not is_data(key) or not is_data(value) or not PyTuple_CheckExact(headers):
        return False
    tail = headers_size(<tuple> headers)
    if tail < 0:
        return False
    size = 1 + varint_size(delta) + varint_size(offset) + data_size(key) + data_size(value) + tail
    reserve(section, varint_size(size) + size)
    at = put_varint(section.start + section.used, size)
    at[0] = 0  # attributes
    at = put_varint(at + 1, delta)
    at = put_varint(at, offset)
    at = put_data(at, key)
    at = put_data(at, value)
    at = put_headers(at, <tuple> headers)
    section.used = at - section.start
    return True


def encode_records(records):
    """Encode records; return (record section, count, first timestamp, maximum timestamp).

    See `encoding.encode_records`.
    """
    cdef Section section
    cdef int64_t offset = 0, first = -1, maximum = -1, timestamp = 0
    cdef bint well = True
    if type(records) is not list and type(records) is not tuple:
        # The pure twin may have to read them again.
        records = list(records)
    begin_section(&section)
    try:
        for record in records:
            if isinstance(record, RecordFields):
                key = (<RecordFields> record).key
                value = (<RecordFields> record).value
                headers = (<RecordFields> record).headers
                timestamp = (<RecordFields> record).timestamp_ms
            else:
                key = record.key
                value = record.value
                headers = record.headers
                well = is_int64(record.timestamp_ms, &timestamp)
            # With a first timestamp of -1 the delta of the largest int64 would not fit.
            if not well or not -1 <= timestamp < INT64_MAX:
                well = False
                break
            if offset == 0:
                first = maximum = timestamp
            elif timestamp > maximum:
                maximum = timestamp
            if not append(&section, key, value, headers, offset, timestamp - first):
                well = False
                break
            offset += 1
        if well:
            encoded = PyBytes_FromStringAndSize(<char *> section.start, section.used)
            return encoded, offset, first, maximum
    finally:
        PyMem_Free(section.start)
    return _encoding.encode_records(records)


def payload_size(key, value, headers):
    """Return the encoded size of key, value and headers, which is the same anywhere in a batch.

    See `encoding.payload_size`.
    """
    cdef Py_ssize_t size
    if is_data(key) and is_data(value) and PyTuple_CheckExact(headers):
        size = headers_size(<tuple> headers)
        if size > 0:
            return data_size(key) + data_size(value) + size
    return _encoding.payload_size(key, value, headers)


def record_size(payload, offset_delta, timestamp_delta_ms):
    """Return the exact size in bytes of an encoded record, its own length field included.

    See `encoding.record_size`.
    """
    cdef int64_t size = 0, offset = 0, delta = 0
    if (
        is_int64(payload, &size)
        and is_int64(offset_delta, &offset)
        and is_int64(timestamp_delta_ms, &delta)
        and -(2**62) < size < 2**62
    ):
        return encoded_size(size, offset, delta)
    return _encoding.record_size(payload, offset_delta, timestamp_delta_ms)


# --- columns -------------------------------------------------------------------------------------


cdef enum Kind:
    ONE  # the same bytes in each row, or None
    MANY  # a tuple
    BINARY  # a BinaryColumn


cdef struct Column:
    Kind kind
    PyObject *things  # of ONE: bytes or None; of MANY: the tuple
    Py_ssize_t length
    Py_ssize_t start
    bint wide
    bint nullable
    int held  # how many of these buffers are held
    Py_buffer data
    Py_buffer offsets
    Py_buffer valid


cdef int open_column(Column *column, object given, bint may_be_one) except -1:
    """Read a column's kind and hold its buffers; return whether the pure twin must not look at it.

    The caller keeps `given` alive and releases the buffers with `close_column`, even after an error.
    """
    cdef Py_ssize_t itemsize
    memset(column, 0, sizeof(Column))
    if PyTuple_CheckExact(given):
        column.kind = MANY
        column.things = <PyObject *> given
        column.length = PyTuple_GET_SIZE(given)
        return True
    if type(given) is _BinaryColumn:
        column.kind = BINARY
        column.start = given.start
        column.length = given.length
        itemsize = given.offsets.itemsize
        column.wide = itemsize == 8
        PyObject_GetBuffer(given.data, &column.data, PyBUF_SIMPLE)
        column.held = 1
        PyObject_GetBuffer(given.offsets, &column.offsets, PyBUF_SIMPLE)
        column.held = 2
        if given.valid is not None:
            column.nullable = True
            PyObject_GetBuffer(given.valid, &column.valid, PyBUF_SIMPLE)
            column.held = 3
        # The object's own check of these lengths was made when its attributes may have differed.
        return (
            column.start >= 0
            and column.length >= 0
            and column.offsets.len // itemsize > column.start + column.length * (column.length > 0)
            and (not column.nullable or column.valid.len * 8 >= column.start + column.length)
        ) or column.length == 0
    if may_be_one and is_data(given):
        column.kind = ONE
        column.things = <PyObject *> given
        return True
    return False


cdef void close_column(Column *column) noexcept:
    if column.held > 0:
        PyBuffer_Release(&column.data)
    if column.held > 1:
        PyBuffer_Release(&column.offsets)
    if column.held > 2:
        PyBuffer_Release(&column.valid)
    column.held = 0


cdef inline bint read(
    Column *column, Py_ssize_t row, const char **data, Py_ssize_t *size
) noexcept:
    """Find the bytes of a row; their size is -1 for None. Return False if there is no such row."""
    cdef Py_ssize_t begin, end
    cdef PyObject *thing
    if column.kind == BINARY:
        if row < 0 or row >= column.length:
            return False
        row += column.start
        if column.nullable and not (<const uint8_t *> column.valid.buf)[row >> 3] >> (row & 7) & 1:
            size[0] = -1
            return True
        if column.wide:
            begin = (<const int64_t *> column.offsets.buf)[row]
            end = (<const int64_t *> column.offsets.buf)[row + 1]
        else:
            begin = (<const int32_t *> column.offsets.buf)[row]
            end = (<const int32_t *> column.offsets.buf)[row + 1]
        if begin < 0 or end < begin or end > column.data.len:
            return False
        data[0] = <const char *> column.data.buf + begin
        size[0] = end - begin
        return True
    thing = column.things
    if column.kind == MANY:
        if row < 0 or row >= column.length:
            return False
        thing = <PyObject *> PyTuple_GET_ITEM(<object> thing, row)
    if thing == <PyObject *> None:
        size[0] = -1
        return True
    if not PyBytes_CheckExact(<object> thing):
        return False
    data[0] = PyBytes_AS_STRING(<object> thing)
    size[0] = PyBytes_GET_SIZE(<object> thing)
    return True


cdef inline Py_ssize_t field_size(Py_ssize_t size) noexcept nogil:
    """Return the size of a field of `size` bytes with its length; -1 is None."""
    return 1 if size < 0 else varint_size(size) + size


cdef inline uint8_t *put_field(uint8_t *at, const char *data, Py_ssize_t size) noexcept:
    if size < 0:
        at[0] = 1
        return at + 1
    return put(at, data, size)


cdef inline bint is_longs(object rows) except -1:
    return type(rows) is array and (<array> rows).ob_descr.typecode == c"q"


def measure_columns(values, keys=None, headers=(), rows=None):
    """Return running totals of the records' sizes in bytes, and the size of the largest record.

    See `columns.measure_columns`.
    """
    cdef Column value, key
    cdef array sizes
    cdef int64_t *put_at
    cdef const int64_t *chosen = NULL
    cdef Py_ssize_t count, i, row, size, length = 0, fixed = MAX_OVERHEAD, tail
    cdef int64_t total = 0, largest = 0
    cdef const char *data = NULL
    cdef bint well = True
    memset(&value, 0, sizeof(Column))
    memset(&key, 0, sizeof(Column))
    try:
        well = open_column(&value, values, False) and open_column(&key, keys, True)
        if well and PyTuple_CheckExact(headers):
            tail = headers_size(<tuple> headers)
            well = tail > 0
            fixed += tail
        elif type(headers) is not list:
            well = False
        if well and rows is not None:
            well = is_longs(rows)
            if well:
                chosen = <const int64_t *> (<array> rows).data.as_longlongs
        if well:
            count = value.length if rows is None else len(<array> rows)
            sizes = clone(_LONGS, count + 1, False)
            put_at = <int64_t *> sizes.data.as_longlongs
            put_at[0] = 0
            for i in range(count):
                row = i if chosen == NULL else chosen[i]
                if not read(&value, row, &data, &length):
                    well = False
                    break
                size = fixed + field_size(length)
                if not read(&key, row, &data, &length):
                    well = False
                    break
                size += field_size(length)
                if type(headers) is list:
                    if row >= len(<list> headers):
                        well = False
                        break
                    one = (<list> headers)[row]
                    tail = headers_size(<tuple> one) if PyTuple_CheckExact(one) else -1
                    if tail < 0:
                        well = False
                        break
                    size += tail
                total += size
                if size > largest:
                    largest = size
                put_at[i + 1] = total
            if well:
                return sizes, largest
    finally:
        close_column(&value)
        close_column(&key)
    return _columns.measure_columns(values, keys, headers, rows)


def encode_columns(values, keys, headers, stamps, rows, begin, end, first_offset, first_ms):
    """Encode some records, given as columns, as a part of the record section of a batch.

    See `columns.encode_columns`.
    """
    cdef Column value, key
    cdef Section section
    cdef const int64_t *chosen = NULL
    cdef const int64_t *times = NULL
    cdef Py_ssize_t count, i, row, size, tail = 0, value_length = 0, key_length = 0
    cdef Py_ssize_t times_length = 0
    cdef int64_t from_record = 0, to_record = 0, offset = 0, first = 0, stamp = 0, delta = 0
    cdef const char *value_data = NULL
    cdef const char *key_data = NULL
    cdef uint8_t *at
    cdef bint well
    cdef bint several = type(headers) is list
    cdef bint stamped = is_longs(stamps)
    memset(&value, 0, sizeof(Column))
    memset(&key, 0, sizeof(Column))
    section.start = NULL
    try:
        well = (
            is_int64(begin, &from_record)
            and is_int64(end, &to_record)
            and is_int64(first_offset, &offset)
            and 0 <= offset < 2**31
            and is_int64(first_ms, &first)
            and 0 <= first < 2**62
            and open_column(&value, values, False)
            and open_column(&key, keys, True)
        )
        if well and PyTuple_CheckExact(headers):
            tail = headers_size(<tuple> headers)
            well = tail > 0
        elif not several:
            well = False
        if well and rows is not None:
            well = is_longs(rows)
            if well:
                chosen = <const int64_t *> (<array> rows).data.as_longlongs
        if well and stamped:
            times = <const int64_t *> (<array> stamps).data.as_longlongs
            times_length = len(<array> stamps)
        elif well:
            well = is_int64(stamps, &stamp) and 0 <= stamp < 2**62
            delta = stamp - first
        if well:
            count = value.length if rows is None else len(<array> rows)
            well = 0 <= from_record <= to_record <= count
        if well:
            begin_section(&section)
            for i in range(from_record, to_record):
                row = i if chosen == NULL else chosen[i]
                if not read(&value, row, &value_data, &value_length):
                    well = False
                    break
                if not read(&key, row, &key_data, &key_length):
                    well = False
                    break
                if stamped:  # an empty array has no buffer, so `times` may be NULL
                    if row >= times_length or not 0 <= times[row] < 2**62:
                        well = False
                        break
                    delta = times[row] - first
                if several:
                    if row >= len(<list> headers):
                        well = False
                        break
                    one = (<list> headers)[row]
                    tail = headers_size(<tuple> one) if PyTuple_CheckExact(one) else -1
                    if tail < 0:
                        well = False
                        break
                else:
                    one = headers
                size = (
                    1 + varint_size(delta) + varint_size(offset)
                    + field_size(key_length) + field_size(value_length) + tail
                )
                reserve(&section, varint_size(size) + size)
                at = put_varint(section.start + section.used, size)
                at[0] = 0  # attributes
                at = put_varint(at + 1, delta)
                at = put_varint(at, offset)
                at = put_field(at, key_data, key_length)
                at = put_field(at, value_data, value_length)
                at = put_headers(at, <tuple> one)
                section.used = at - section.start
                offset += 1
            if well:
                return PyBytes_FromStringAndSize(<char *> section.start, section.used)
    finally:
        close_column(&value)
        close_column(&key)
        PyMem_Free(section.start)
    return _columns.encode_columns(
        values, keys, headers, stamps, rows, begin, end, first_offset, first_ms
    )


# --- hashes --------------------------------------------------------------------------------------


cdef int32_t hash_of(const uint8_t *data, Py_ssize_t length) noexcept nogil:
    cdef uint32_t m = <uint32_t> 0x5BD1E995U, h = <uint32_t> 0x9747B28CU ^ <uint32_t> length, k
    cdef Py_ssize_t left = length
    while left >= 4:
        k = data[0] | <uint32_t> data[1] << 8 | <uint32_t> data[2] << 16 | <uint32_t> data[3] << 24
        k *= m
        k ^= k >> 24
        h = (h * m) ^ (k * m)
        data += 4
        left -= 4
    if left > 0:
        if left > 2:
            h ^= <uint32_t> data[2] << 16
        if left > 1:
            h ^= <uint32_t> data[1] << 8
        h = (h ^ data[0]) * m
    h ^= h >> 13
    h *= m
    h ^= h >> 15
    return <int32_t> h


def murmur2(data):
    """Return the 32-bit murmur2 hash of ``data`` as Java's signed ``int``."""
    if PyBytes_CheckExact(data):
        return hash_of(<const uint8_t *> PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
    return _hashing.murmur2(data)


def partitions_of(keys, count):
    """Return the partition of each key of a column, among ``count`` partitions.

    See `hashing.partitions_of`.
    """
    cdef int64_t partitions = 0
    cdef Py_ssize_t i = 0
    cdef array found
    cdef int32_t h
    cdef Column hashed
    cdef const char *data = NULL
    cdef Py_ssize_t length = 0
    if type(keys) is _BinaryColumn and is_int64(count, &partitions) and 0 < partitions < 2**31:
        memset(&hashed, 0, sizeof(Column))
        try:
            if open_column(&hashed, keys, False):
                found = clone(_INTS, hashed.length, False)
                for i in range(hashed.length):
                    if not read(&hashed, i, &data, &length):
                        break
                    found.data.as_ints[i] = (
                        -1
                        if length < 0
                        else (hash_of(<const uint8_t *> data, length) & 0x7FFFFFFF)
                        % <int32_t> partitions
                    )
                else:
                    return found
        finally:
            close_column(&hashed)
        return _hashing.partitions_of(keys, count)
    if type(keys) is not list and type(keys) is not tuple:
        keys = list(keys)
    if is_int64(count, &partitions) and 0 < partitions < 2**31:
        column = tuple(keys)
        found = clone(_INTS, len(column), False)
        for key in column:
            if key is None:
                found.data.as_ints[i] = -1
            elif PyBytes_CheckExact(key):
                h = hash_of(<const uint8_t *> PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))
                found.data.as_ints[i] = (h & 0x7FFFFFFF) % <int32_t> partitions
            else:
                break
            i += 1
        else:
            return found
    return _hashing.partitions_of(keys, count)


def rows_of_partitions(partitions, rows):
    """Return the rows of each partition, in their order; None if a row has no partition.

    See `hashing.rows_of_partitions`.
    """
    cdef const int *places
    cdef const int64_t *chosen = NULL
    cdef int64_t first = 0, row
    cdef Py_ssize_t length, count, i
    cdef int place, most = -1
    cdef int64_t *sizes = NULL
    cdef list order = []
    cdef dict found = {}
    cdef array each
    if type(partitions) is not array or (<array> partitions).ob_descr.typecode != c"i":
        return _hashing.rows_of_partitions(partitions, rows)
    places = (<array> partitions).data.as_ints
    length = len(<array> partitions)
    if is_longs(rows):
        chosen = <const int64_t *> (<array> rows).data.as_longlongs
        count = len(<array> rows)
    elif type(rows) is range and rows.step == 1 and 0 <= rows.start and rows.stop <= length:
        count = len(rows)
        first = rows.start
    else:
        return _hashing.rows_of_partitions(partitions, rows)
    for i in range(count):
        row = first + i if chosen is NULL else chosen[i]
        if not 0 <= row < length:
            return _hashing.rows_of_partitions(partitions, rows)
        if places[row] < 0:
            return None
        most = max(most, places[row])
    if most >= _MOST_PLACES:
        return _hashing.rows_of_partitions(partitions, rows)
    sizes = <int64_t *> PyMem_Malloc((most + 1) * sizeof(int64_t))
    if sizes is NULL:
        raise MemoryError
    memset(sizes, 0, (most + 1) * sizeof(int64_t))
    try:
        for i in range(count):
            place = places[first + i if chosen is NULL else chosen[i]]
            if not sizes[place]:
                order.append(place)
            sizes[place] += 1
        for each_place in order:
            place = each_place
            found[each_place] = clone(_LONGS, sizes[place], False)
            sizes[place] = 0
        for i in range(count):
            row = first + i if chosen is NULL else chosen[i]
            place = places[row]
            each = <array> found[place]
            each.data.as_longlongs[sizes[place]] = row
            sizes[place] += 1
    finally:
        PyMem_Free(sizes)
    return found
