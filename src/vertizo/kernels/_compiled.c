/* Loops that NumPy makes in several passes, each behind a call of microseconds.
 *
 * `vertizo.kernels.plain` says what every function is for, and does the same where this file was not
 * compiled. Arrays are C-contiguous and of the types that are checked there; sizes are
 * checked here once more, since nothing here may write beyond an array.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__linux__)
#define WIDE __attribute__((target_clones("avx512f", "avx2,fma", "default")))
#else
#define WIDE
#endif
#if defined(__GNUC__)
#define FETCH(address, writing) __builtin_prefetch(address, writing, 3)
#else
#define FETCH(address, writing) ((void)0)
#endif

#define LINE 64 /* bytes of a cache line */
#define AHEAD 4 /* rows that are fetched before they are needed */
#define MOST 6  /* arrays of one call */

typedef Py_ssize_t size;

/* The arguments of one call: arrays first, then numbers. */
typedef struct {
    Py_buffer views[MOST];
    int held;
} Arrays;

/* Takes `count` arrays; those of the bits in `written` will be changed. */
static int take(Arrays *arrays, PyObject *const *args, int count, int written) {
    for (arrays->held = 0; arrays->held < count; arrays->held++) {
        int flags = PyBUF_ND | PyBUF_C_CONTIGUOUS | (written >> arrays->held & 1 ? PyBUF_WRITABLE : 0);
        if (PyObject_GetBuffer(args[arrays->held], &arrays->views[arrays->held], flags)) {
            while (arrays->held--) PyBuffer_Release(&arrays->views[arrays->held]);
            return 0;
        }
    }
    return 1;
}

static PyObject *done(Arrays *arrays, PyObject *result) {
    while (arrays->held--) PyBuffer_Release(&arrays->views[arrays->held]);
    return result;
}

static PyObject *nothing(Arrays *arrays) { return done(arrays, Py_NewRef(Py_None)); }

static PyObject *wrong(Arrays *arrays, const char *what) {
    PyErr_SetString(PyExc_ValueError, what);
    return done(arrays, NULL);
}

#define BYTES(place) (arrays.views[place].len)
#define AT(type, place) ((type *)arrays.views[place].buf)
#define KERNEL(name) \
    static PyObject *name(PyObject *Py_UNUSED(module), PyObject *const *args, size given)
#define NEEDS(number) \
    if (given != number) return PyErr_Format(PyExc_TypeError, "%d arguments are needed", number)

/* ---- random numbers ---------------------------------------------------------------------- */

/* SFC64, by Chris Doty-Humphrey: the words of numpy.random.SFC64. */
static inline uint64_t next_word(uint64_t *state) {
    uint64_t word = state[0] + state[1] + state[3]++;
    state[0] = state[1] ^ (state[1] >> 11);
    state[1] = state[2] + (state[2] << 3);
    state[2] = ((state[2] << 24) | (state[2] >> 40)) + word;
    return word;
}

/* start(state, seed) */
KERNEL(start) {
    Arrays arrays;
    NEEDS(2);
    uint64_t seed = PyLong_AsUnsignedLongLong(args[1]);
    if (PyErr_Occurred() || !take(&arrays, args, 1, 1)) return NULL;
    if (BYTES(0) != 32) return wrong(&arrays, "a state has four words");
    uint64_t *state = AT(uint64_t, 0);
    state[0] = state[1] = state[2] = seed;
    state[3] = 1;
    for (int i = 0; i < 12; i++) next_word(state);
    return nothing(&arrays);
}

/* normals(state, out, values) */
KERNEL(normals) {
    Arrays arrays;
    NEEDS(3);
    if (!take(&arrays, args, 3, 3)) return NULL;
    if (BYTES(0) != 32 || BYTES(2) != 4 << 16) return wrong(&arrays, "a state and 65,536 values");
    uint64_t state[4];
    memcpy(state, AT(void, 0), sizeof state);
    float *out = AT(float, 1);
    const float *values = AT(float, 2);
    size count = BYTES(1) / 4, i = 0;
    for (; i + 4 <= count; i += 4) {
        uint64_t word = next_word(state);
        out[i] = values[word & 0xFFFF];
        out[i + 1] = values[word >> 16 & 0xFFFF];
        out[i + 2] = values[word >> 32 & 0xFFFF];
        out[i + 3] = values[word >> 48];
    }
    if (i < count)
        for (uint64_t word = next_word(state); i < count; i++, word >>= 16)
            out[i] = values[word & 0xFFFF];
    memcpy(AT(void, 0), state, sizeof state);
    return nothing(&arrays);
}

/* signs(state, out, eights) */
KERNEL(signs) {
    Arrays arrays;
    NEEDS(3);
    if (!take(&arrays, args, 3, 3)) return NULL;
    if (BYTES(0) != 32 || BYTES(2) != 256 * 32) return wrong(&arrays, "a state and 256 eights");
    char *out = AT(char, 1);
    for (size left = BYTES(1); left > 0;) {
        uint64_t word = next_word(AT(uint64_t, 0));
        for (int byte = 0; byte < 8 && left > 0; byte++, word >>= 8) {
            size bytes = left < 32 ? left : 32;
            memcpy(out, AT(char, 2) + 32 * (word & 0xFF), bytes);
            out += bytes;
            left -= bytes;
        }
    }
    return nothing(&arrays);
}

/* ---- rows of tables ---------------------------------------------------------------------- */

static int within(const int64_t *ids, size count, size records) {
    int all = 1;
    for (size i = 0; i < count; i++) all &= ids[i] >= 0 && ids[i] < records;
    return all;
}

/* gather(out, rows, ids, records) */
KERNEL(gather) {
    Arrays arrays;
    NEEDS(4);
    size records = PyLong_AsSsize_t(args[3]);
    if (PyErr_Occurred() || !take(&arrays, args, 3, 1)) return NULL;
    const int64_t *ids = AT(int64_t, 2);
    size count = BYTES(2) / 8, bytes = records > 0 ? BYTES(1) / records : 0;
    if (BYTES(0) != count * bytes || !within(ids, count, records))
        return wrong(&arrays, "rows that there are not");
    for (size i = 0; i < count; i++) {
        if (i + AHEAD < count)
            for (size at = 0; at < bytes; at += LINE)
                FETCH(AT(char, 1) + ids[i + AHEAD] * bytes + at, 0);
        memcpy(AT(char, 0) + i * bytes, AT(char, 1) + ids[i] * bytes, bytes);
    }
    return nothing(&arrays);
}

/* scatter(rows, ids, values, records, first) */
KERNEL(scatter) {
    Arrays arrays;
    NEEDS(5);
    size records = PyLong_AsSsize_t(args[3]), first = PyLong_AsSsize_t(args[4]);
    if (PyErr_Occurred() || !take(&arrays, args, 3, 1)) return NULL;
    const int64_t *ids = AT(int64_t, 1);
    size count = BYTES(1) / 8, step = records > 0 ? BYTES(0) / records : 0;
    size bytes = count ? BYTES(2) / count : 0;
    if (first < 0 || first + bytes > step || !within(ids, count, records))
        return wrong(&arrays, "columns or rows that there are not");
    char *rows = AT(char, 0) + first;
    for (size i = 0; i < count; i++) {
        if (i + AHEAD < count)
            for (size at = 0; at < bytes; at += LINE)
                FETCH(rows + ids[i + AHEAD] * step + at, 1);
        memcpy(rows + ids[i] * step, AT(char, 2) + i * bytes, bytes);
    }
    return nothing(&arrays);
}

/* distinct(places, ids) */
KERNEL(distinct) {
    Arrays arrays;
    NEEDS(2);
    if (!take(&arrays, args, 2, 1)) return NULL;
    int32_t *places = AT(int32_t, 0);
    const int64_t *ids = AT(int64_t, 1);
    size count = BYTES(1) / 8, same = 0;
    if (!within(ids, count, BYTES(0) / 4)) return wrong(&arrays, "an ID beyond the places");
    for (size i = 0; i < count; i++) places[ids[i]] = (int32_t)i;
    for (size i = 0; i < count; i++) same |= places[ids[i]] ^ (int32_t)i;
    return done(&arrays, PyBool_FromLong(same == 0));
}

/* ages(rounds, ids, records) */
KERNEL(ages) {
    Arrays arrays;
    NEEDS(3);
    size records = PyLong_AsSsize_t(args[2]);
    if (PyErr_Occurred() || !take(&arrays, args, 2, 0)) return NULL;
    const int64_t *ids = AT(int64_t, 1);
    size count = BYTES(1) / 8, columns = records > 0 ? BYTES(0) / 4 / records : 0;
    if (!columns || !within(ids, count, records)) return wrong(&arrays, "rows that there are not");
    int64_t sum = 0;
    int32_t least = INT32_MAX;
    for (size i = 0; i < count; i++)
        for (size k = 0; k < columns; k++) {
            int32_t round = AT(int32_t, 0)[ids[i] * columns + k];
            sum += round;
            if (round < least) least = round;
        }
    return done(&arrays, Py_BuildValue("Li", (long long)sum, (int)least));
}

/* ---- losses and gradients ---------------------------------------------------------------- */

WIDE static float largest(const float *values, size count) {
    float most = 0;
    int finite = 1;
    for (size i = 0; i < count; i++) {
        float value = fabsf(values[i]);
        most = value > most ? value : most;
        finite &= value == value;
    }
    return finite ? most : NAN;
}

/* bounded(values, bound) */
KERNEL(bounded) {
    Arrays arrays;
    NEEDS(2);
    double bound = PyFloat_AsDouble(args[1]);
    if (PyErr_Occurred() || !take(&arrays, args, 1, 0)) return NULL;
    return done(&arrays, PyBool_FromLong(largest(AT(float, 0), BYTES(0) / 4) <= (float)bound));
}

/* e^x for x <= 0; NaN for NaN. Cephes' polynomial, within two units of the last place. */
static inline float exponential(float x) {
    float kept = x > -87.0f ? x : -87.0f, twos = floorf(kept * 1.44269504f + 0.5f);
    float rest = kept - twos * 0.693359375f + twos * 2.12194440e-4f, sum = 1.9875691500e-4f;
    sum = sum * rest + 1.3981999507e-3f;
    sum = sum * rest + 8.3334519073e-3f;
    sum = sum * rest + 4.1665795894e-2f;
    sum = sum * rest + 1.6666665459e-1f;
    sum = sum * rest + 5.0000001201e-1f;
    int32_t bits = ((int32_t)(twos >= -126 ? twos : -126) + 127) << 23;
    float power;
    memcpy(&power, &bits, 4);
    float found = (sum * rest * rest + rest + 1.0f) * power;
    return x > -87.0f ? found : x <= -87.0f ? 0.0f : x;
}

#define LANES 16

/* Of any count in whole vectors, so that a number's place in an array never shows in its digits. */
WIDE static void exponentials(const float *in, float *out, size count) {
    float some[LANES];
    for (size i = 0; i < count; i += LANES) {
        size left = count - i < LANES ? count - i : LANES;
        memset(some, 0, sizeof some);
        memcpy(some, in + i, 4 * left);
        for (int k = 0; k < LANES; k++) some[k] = exponential(some[k]);
        memcpy(out + i, some, 4 * left);
    }
}

WIDE static void softmax_rows(
    const float *logits, float *scores, float *parts, float *totals, size classes, size rows
) {
    for (size i = 0; i < rows; i++) totals[i] = logits[i];
    for (size k = 1; k < classes; k++)
        for (size i = 0; i < rows; i++) {
            float value = logits[k * rows + i], most = totals[i];
            totals[i] = value > most || value != value ? value : most;
        }
    for (size k = 0; k < classes; k++)
        for (size i = 0; i < rows; i++) scores[k * rows + i] = logits[k * rows + i] - totals[i];
    exponentials(scores, parts, classes * rows);
    for (size i = 0; i < rows; i++) totals[i] = 0;
    for (size k = 0; k < classes; k++)
        for (size i = 0; i < rows; i++) totals[i] += parts[k * rows + i];
}

/* softmax(scores, parts, totals, losses, logits, labels) */
KERNEL(softmax) {
    Arrays arrays;
    NEEDS(6);
    if (!take(&arrays, args, 6, 15)) return NULL;
    size rows = BYTES(2) / 4, records = BYTES(5) / 8, all = BYTES(4);
    size classes = rows ? all / 4 / rows : 0;
    const int64_t *labels = AT(int64_t, 5);
    if (!records || rows % records || BYTES(0) != all || BYTES(1) != all ||
        all != 4 * rows * classes || BYTES(3) != 4 * rows || !within(labels, records, classes))
        return wrong(&arrays, "arrays that do not fit each other");
    float *scores = AT(float, 0), *totals = AT(float, 2), *losses = AT(float, 3);
    softmax_rows(AT(float, 4), scores, AT(float, 1), totals, classes, rows);
    for (size i = 0; i < rows; i++)
        losses[i] = logf(totals[i]) - scores[labels[i % records] * rows + i];
    return nothing(&arrays);
}

WIDE static void softmax_slopes(
    const float *parts, const float *totals, float weight, float *out, size classes, size rows,
    size first, size records
) {
    for (size k = 0; k < classes; k++)
        for (size i = 0; i < records; i++)
            out[k * records + i] = parts[k * rows + first + i] * (weight / totals[first + i]);
}

/* slopes(out, parts, totals, labels, first, weight) */
KERNEL(slopes) {
    Arrays arrays;
    NEEDS(6);
    size first = PyLong_AsSsize_t(args[4]);
    double weight = PyFloat_AsDouble(args[5]);
    if (PyErr_Occurred() || !take(&arrays, args, 4, 1)) return NULL;
    size rows = BYTES(2) / 4, records = BYTES(3) / 8, classes = rows ? BYTES(1) / 4 / rows : 0;
    const int64_t *labels = AT(int64_t, 3);
    if (first < 0 || first + records > rows || BYTES(0) != 4 * classes * records ||
        BYTES(1) != 4 * classes * rows || !within(labels, records, classes))
        return wrong(&arrays, "arrays that do not fit each other");
    float *out = AT(float, 0);
    softmax_slopes(AT(float, 1), AT(float, 2), (float)weight, out, classes, rows, first, records);
    for (size i = 0; i < records; i++) out[labels[i] * records + i] -= (float)weight;
    return nothing(&arrays);
}

/* right(parts, labels, first, stop) */
KERNEL(right) {
    Arrays arrays;
    NEEDS(4);
    size first = PyLong_AsSsize_t(args[2]), stop = PyLong_AsSsize_t(args[3]);
    if (PyErr_Occurred() || !take(&arrays, args, 2, 0)) return NULL;
    const float *parts = AT(float, 0);
    const int64_t *labels = AT(int64_t, 1);
    size records = BYTES(1) / 8, classes = 0, rows = 0, count = 0;
    if (arrays.views[0].ndim == 2) classes = arrays.views[0].shape[0], rows = arrays.views[0].shape[1];
    if (first < 0 || stop > rows || !records || !within(labels, records, classes))
        return wrong(&arrays, "arrays that do not fit each other");
    for (size i = 0; i < stop - first; i++) {
        const float *row = parts + first + i;
        size best = 0;
        for (size k = 1; k < classes && row[best * rows] == row[best * rows]; k++)
            if (!(row[k * rows] <= row[best * rows])) best = k; /* NaN counts as the largest */
        count += best == labels[i % records];
    }
    return done(&arrays, PyLong_FromSsize_t(count));
}

WIDE static void masked_sums(float *gradient, const float *outputs, float *sums, size rows,
                             size columns) {
    memset(sums, 0, 4 * columns);
    for (size i = 0; i < rows; i++)
        for (size k = 0; k < columns; k++) {
            float kept = outputs[i * columns + k] > 0 ? gradient[i * columns + k] : 0;
            gradient[i * columns + k] = kept;
            sums[k] += kept;
        }
}

/* through_relu(gradient, sums, outputs) */
KERNEL(through_relu) {
    Arrays arrays;
    NEEDS(3);
    if (!take(&arrays, args, 3, 3)) return NULL;
    size columns = BYTES(1) / 4, rows = columns ? BYTES(0) / 4 / columns : 0;
    if (BYTES(0) != 4 * rows * columns || BYTES(2) != BYTES(0))
        return wrong(&arrays, "arrays that do not fit each other");
    masked_sums(AT(float, 0), AT(float, 2), AT(float, 1), rows, columns);
    return nothing(&arrays);
}

#define FAST(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, NULL}
static PyMethodDef methods[] = {
    FAST(start), FAST(normals), FAST(signs),   FAST(gather), FAST(scatter),      FAST(distinct),
    FAST(ages),  FAST(bounded), FAST(softmax), FAST(slopes), FAST(right),
    FAST(through_relu), {0}};
static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "_compiled", .m_size = 0, .m_methods = methods};

PyMODINIT_FUNC PyInit__compiled(void) { return PyModuleDef_Init(&module); }
