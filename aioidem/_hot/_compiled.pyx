# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=False
# cython: freethreading_compatible=True
"""The compiled twin of `encoding` and `hashing`: the same functions, the same bytes and errors.

Each function takes what a producer's records have: exact bytes, exact ints of 64 bits, headers in a
tuple of tuples. Anything else, right or wrong, is handed to the pure twin, whose result or error
is then the answer: this file has no error message of its own, and none can differ.

Invariants: nothing here is reached by two threads at once, except for objects that cannot change
(bytes, str, tuples) and lists that are iterated as Python iterates them. No reference is borrowed
across a call that can run Python code.

Rejected: two passes, sizes first and then the bytes, into a result of the right length (an attribute
could give another value in the second pass, and reading attributes is most of the time).
"""

from cpython.array cimport array, clone
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from aioidem._hot import encoding as _encoding
from aioidem._hot import hashing as _hashing


cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    int64_t PyLong_AsLongLongAndOverflow(object number, int *overflow) except? -1
    bint PyBytes_CheckExact(object) noexcept
    bint PyLong_CheckExact(object) noexcept
    bint PyTuple_CheckExact(object) noexcept
    bint PyUnicode_CheckExact(object) noexcept


cdef array _INTS = array("i")
cdef Py_ssize_t _FIRST_CAPACITY = 32768


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


cdef int begin(Section *section) except -1:
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
    begin(&section)
    try:
        for record in records:
            key = record.key
            value = record.value
            headers = record.headers
            # With a first timestamp of -1 the delta of the largest int64 would not fit.
            if not is_int64(record.timestamp_ms, &timestamp) or not -1 <= timestamp < INT64_MAX:
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


def encode_values(values, key=None, headers=(), first_offset=0, delta_ms=0):
    """Encode records that differ only in their values, as a part of a record section.

    See `encoding.encode_values`.
    """
    cdef Section section
    cdef int64_t offset = 0, delta = 0
    cdef bint well = True
    if (
        (type(values) is list or type(values) is tuple)
        and values  # without any, key and headers would not be looked at
        and is_int64(first_offset, &offset)
        and is_int64(delta_ms, &delta)
        and 0 <= offset < 2**62
    ):
        begin(&section)
        try:
            for value in values:
                if not append(&section, key, value, headers, offset, delta):
                    well = False
                    break
                offset += 1
            if well:
                return PyBytes_FromStringAndSize(<char *> section.start, section.used)
        finally:
            PyMem_Free(section.start)
    return _encoding.encode_values(values, key, headers, first_offset, delta_ms)


def payload_size(key, value, headers):
    """Return the encoded size of key, value and headers, which no position in a batch changes.

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
        size += 1 + varint_size(delta) + varint_size(offset)
        return size + varint_size(size)
    return _encoding.record_size(payload, offset_delta, timestamp_delta_ms)


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
