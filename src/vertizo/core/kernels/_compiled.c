/* Loops that NumPy makes in several passes, each behind a call of microseconds.
 *
 * `vertizo.core.kernels.plain` says what every function is for, and does the same where this file was not
 * compiled. Arrays are C-contiguous and of the types that are checked there; sizes are
 * checked here once more, since nothing here may write beyond an array.
 */
#include "_arguments.h"
#include <math.h>
#include <stdlib.h>
#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__linux__)
#define WIDE __attribute__((target_clones("avx512f", "avx2,fma", "default")))
#else
#define WIDE
#endif

#define LINE 64 /* bytes of a cache line */
#define AHEAD 4 /* rows that are fetched before they are needed */
#define LANES 16 /* numbers of the widest vectors there are */

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

static void draw_normals(uint64_t *given, float *out, size count, const float *values) {
    uint64_t state[4];
    memcpy(state, given, sizeof state);
    size i = 0;
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
    memcpy(given, state, sizeof state);
}

static void draw_signs(uint64_t *state, float *out, size count, const float *eights) {
    while (count > 0) {
        uint64_t word = next_word(state);
        for (int byte = 0; byte < 8 && count > 0; byte++, word >>= 8) {
            size some = count < 8 ? count : 8;
            memcpy(out, eights + 8 * (word & 0xFF), 4 * some);
            out += some;
            count -= some;
        }
    }
}

typedef void (*Draw)(uint64_t *state, float *out, size count, const float *from);

static PyObject *filled(PyObject *const *args, size given, Draw draw, size from) {
    Arrays arrays;
    NEEDS(3);
    if (!take(&arrays, args, 3, 3)) return NULL;
    if (BYTES(0) != 32 || BYTES(2) != 4 * from) return wrong(&arrays, "a state and a law's values");
    draw(AT(uint64_t, 0), AT(float, 1), BYTES(1) / 4, AT(float, 2));
    return nothing(&arrays);
}

/* normals(state, out, values) */
KERNEL(normals) { return filled(args, given, draw_normals, 1 << 16); }

/* signs(state, out, eights) */
KERNEL(signs) { return filled(args, given, draw_signs, 256 * 8); }

WIDE static void add_scaled(float *vector, const float *numbers, float factor, size count) {
    for (size i = 0; i < count; i++) vector[i] += factor * numbers[i];
}

/* add(vector, numbers, factor) */
KERNEL(add) {
    Arrays arrays;
    NEEDS(3);
    float factor = (float)PyFloat_AsDouble(args[2]);
    if (PyErr_Occurred() || !take(&arrays, args, 2, 1)) return NULL;
    if (BYTES(0) != BYTES(1)) return wrong(&arrays, "arrays that do not fit each other");
    add_scaled(AT(float, 0), AT(float, 1), factor, BYTES(0) / 4);
    return nothing(&arrays);
}

#define SOME 2048 /* numbers that are worked on while they are in the cache */

WIDE static void scale(float *vector, float factor, size count) {
    for (size i = 0; i < count; i++) vector[i] *= factor;
}

/* descend(parameters, velocity, numbers, momentum, factor, rate) */
KERNEL(descend) {
    Arrays arrays;
    NEEDS(6);
    float momentum = (float)PyFloat_AsDouble(args[3]), factor = (float)PyFloat_AsDouble(args[4]);
    float rate = (float)PyFloat_AsDouble(args[5]);
    if (PyErr_Occurred() || !take(&arrays, args, 3, 3)) return NULL;
    if (BYTES(0) != BYTES(1) || BYTES(0) != BYTES(2))
        return wrong(&arrays, "arrays that do not fit each other");
    size count = BYTES(0) / 4;
    for (size i = 0; i < count; i += SOME) { /* rounded as three passes would be */
        size left = count - i < SOME ? count - i : SOME;
        scale(AT(float, 1) + i, momentum, left);
        add_scaled(AT(float, 1) + i, AT(float, 2) + i, factor, left);
        add_scaled(AT(float, 0) + i, AT(float, 1) + i, -rate, left);
    }
    return nothing(&arrays);
}

#define FEW 256    /* numbers that are drawn and added: between two draws memory has time to come */
#define LATER 2048 /* numbers that it is given for it */

static PyObject *added(PyObject *const *args, size given, Draw draw, size from) {
    Arrays arrays;
    NEEDS(4);
    float some[FEW], factor = (float)PyFloat_AsDouble(args[3]);
    if (PyErr_Occurred() || !take(&arrays, args, 3, 3)) return NULL;
    if (BYTES(0) != 32 || BYTES(2) != 4 * from) return wrong(&arrays, "a state and a law's values");
    size count = BYTES(1) / 4;
    float *vector = AT(float, 1);
    for (size i = 0; i < count; i += FEW) {
        size left = count - i < FEW ? count - i : FEW;
        for (size at = i + LATER; at < i + LATER + FEW && at < count; at += LINE / 4)
            FETCH(vector + at, 1);
        draw(AT(uint64_t, 0), some, left, AT(float, 2));
        add_scaled(vector + i, some, factor, left);
    }
    return nothing(&arrays);
}

/* add_normals(state, vector, values, factor) */
KERNEL(add_normals) { return added(args, given, draw_normals, 1 << 16); }

/* add_signs(state, vector, eights, factor) */
KERNEL(add_signs) { return added(args, given, draw_signs, 256 * 8); }

/* Sixteen sums side by side, each of so few that float32 loses little, then in float64. */
WIDE static double sum_of_squares(const float *numbers, size count) {
    double total = 0;
    while (count > 0) {
        float sums[LANES] = {0};
        size some = count < SOME ? count : SOME, i = 0;
        for (; i + LANES <= some; i += LANES)
            for (int k = 0; k < LANES; k++) sums[k] += numbers[i + k] * numbers[i + k];
        for (; i < some; i++) sums[0] += numbers[i] * numbers[i];
        for (int k = 0; k < LANES; k++) total += sums[k];
        numbers += some;
        count -= some;
    }
    return total;
}

/* squares(numbers) */
KERNEL(squares) {
    Arrays arrays;
    NEEDS(1);
    if (!take(&arrays, args, 1, 0)) return NULL;
    return done(&arrays, PyFloat_FromDouble(sum_of_squares(AT(float, 0), BYTES(0) / 4)));
}

/* normal_squares(state, count, values) */
KERNEL(normal_squares) {
    Arrays arrays;
    NEEDS(3);
    PyObject *arguments[2] = {args[0], args[2]};
    size count = PyLong_AsSsize_t(args[1]);
    if (PyErr_Occurred() || !take(&arrays, arguments, 2, 1)) return NULL;
    if (BYTES(0) != 32 || BYTES(1) != 4 << 16) return wrong(&arrays, "a state and a law's values");
    float some[SOME];
    double total = 0;
    for (; count > 0; count -= SOME) {
        size left = count < SOME ? count : SOME;
        draw_normals(AT(uint64_t, 0), some, left, AT(float, 1));
        total += sum_of_squares(some, left);
    }
    return done(&arrays, PyFloat_FromDouble(total));
}

/* ---- rows of tables ---------------------------------------------------------------------- */

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

/* stamp(rounds, ids, records, column, round) */
KERNEL(stamp) {
    Arrays arrays;
    NEEDS(5);
    size records = PyLong_AsSsize_t(args[2]), column = PyLong_AsSsize_t(args[3]);
    long round = PyLong_AsLong(args[4]);
    if (PyErr_Occurred() || !take(&arrays, args, 2, 1)) return NULL;
    const int64_t *ids = AT(int64_t, 1);
    size count = BYTES(1) / 8, columns = records > 0 ? BYTES(0) / 4 / records : 0;
    if (column < 0 || column >= columns || !within(ids, count, records))
        return wrong(&arrays, "a column or rows that there are not");
    for (size i = 0; i < count; i++) AT(int32_t, 0)[ids[i] * columns + column] = (int32_t)round;
    return nothing(&arrays);
}

/* apart(out, points, rows, column) */
KERNEL(apart) {
    Arrays arrays;
    NEEDS(4);
    size column = PyLong_AsSsize_t(args[3]);
    if (PyErr_Occurred() || !take(&arrays, args, 3, 1)) return NULL;
    if (arrays.views[1].ndim != 3 || arrays.views[2].ndim != 2)
        return wrong(&arrays, "points of three axes, and rows of two");
    size points = arrays.views[1].shape[0], count = arrays.views[1].shape[1];
    size width = arrays.views[1].shape[2], step = arrays.views[2].shape[1];
    if (BYTES(0) != BYTES(1) || BYTES(2) != 4 * count * step || column < 0 || column + width > step)
        return wrong(&arrays, "arrays that do not fit each other");
    float *out = AT(float, 0);
    const float *point = AT(float, 1);
    for (size k = 0; k < points; k++)
        for (size i = 0; i < count; i++, out += width, point += width) {
            const float *row = AT(float, 2) + i * step + column;
            for (size j = 0; j < width; j++) out[j] = point[j] - row[j];
        }
    return nothing(&arrays);
}

/* highest(ids) */
KERNEL(highest) {
    Arrays arrays;
    NEEDS(1);
    if (!take(&arrays, args, 1, 0)) return NULL;
    int64_t most = 0;
    for (size i = 0; i < BYTES(0) / 8; i++) {
        int64_t id = AT(int64_t, 0)[i];
        most = id > most ? id : most;
    }
    return done(&arrays, PyLong_FromLongLong(most));
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

/* As integers absolute values are in order, infinity and NaN behind the others. */
WIDE static int32_t largest(const int32_t *bits, size count) {
    int32_t most = 0;
    for (size i = 0; i < count; i++) {
        int32_t value = bits[i] & INT32_MAX;
        most = value > most ? value : most;
    }
    return most;
}

/* bounded(values, bound) */
KERNEL(bounded) {
    Arrays arrays;
    NEEDS(2);
    float bound = (float)PyFloat_AsDouble(args[1]);
    int32_t bits;
    if (PyErr_Occurred() || !take(&arrays, args, 1, 0)) return NULL;
    memcpy(&bits, &bound, 4);
    return done(&arrays, PyBool_FromLong(bound >= 0 && largest(AT(int32_t, 0), BYTES(0) / 4) <= bits));
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

/* log x for x >= 1; what is not finite as it is. Cephes' polynomial, within a unit of the last place. */
static inline float logarithm(float x) {
    int32_t bits;
    memcpy(&bits, &x, 4);
    int32_t fraction = (bits & 0x7FFFFF) | 0x3F000000;
    float rest, twos = (float)((bits >> 23) - 126);
    memcpy(&rest, &fraction, 4);
    int small = rest < 0.707106781f;
    twos -= small ? 1.0f : 0.0f;
    rest = (small ? rest + rest : rest) - 1.0f;
    float square = rest * rest, sum = 7.0376836292e-2f;
    sum = sum * rest - 1.1514610310e-1f;
    sum = sum * rest + 1.1676998740e-1f;
    sum = sum * rest - 1.2420140846e-1f;
    sum = sum * rest + 1.4249322787e-1f;
    sum = sum * rest - 1.6668057665e-1f;
    sum = sum * rest + 2.0000714765e-1f;
    sum = sum * rest - 2.4999993993e-1f;
    sum = sum * rest + 3.3333331174e-1f;
    sum = sum * rest * square - 2.12194440e-4f * twos - 0.5f * square;
    float found = rest + sum + 0.693359375f * twos;
    return x <= 3.4028234e38f ? found : x;
}

typedef struct {
    const float *logits;
    const int64_t *labels;
    float *parts, *totals, *losses;
    int32_t *likeliest;
    size classes, records;
} Softmax;

/* Sixteen rows at a time, each in a lane of its own: its place never shows in its digits. */
WIDE static void softmax_rows(const Softmax *s, size first, size count, float *turned) {
    float most[LANES], totals[LANES] = {0}, logs[LANES], own[LANES];
    int32_t best[LANES] = {0};
    const float *logits = s->logits + first * s->classes;
    float *parts = s->parts + first * s->classes;
    for (size i = 0; i < LANES; i++) /* there may be fewer rows: the last one stands for the rest */
        for (size k = 0; k < s->classes; k++)
            turned[k * LANES + i] = logits[(i < count ? i : count - 1) * s->classes + k];
    for (int i = 0; i < LANES; i++) most[i] = turned[i];
    for (size k = 1; k < s->classes; k++)
        for (int i = 0; i < LANES; i++) { /* NaN counts as the largest, of equals the first */
            float value = turned[k * LANES + i], before = most[i];
            int stays = (value <= before) | (before != before);
            most[i] = stays ? before : value;
            best[i] = stays ? best[i] : (int32_t)k;
        }
    for (size i = 0, at = first % s->records; i < count; i++, at = at + 1 < s->records ? at + 1 : 0)
        own[i] = turned[s->labels[at] * LANES + i] - most[i];
    for (size k = 0; k < s->classes; k++)
        for (size i = 0; i < LANES; i++) {
            float part = exponential(turned[k * LANES + i] - most[i]);
            turned[k * LANES + i] = part;
            totals[i] += part;
        }
    for (size i = 0; i < LANES; i++) logs[i] = logarithm(totals[i]);
    for (size i = 0; i < count; i++) {
        for (size k = 0; k < s->classes; k++) parts[i * s->classes + k] = turned[k * LANES + i];
        s->totals[first + i] = totals[i];
        s->losses[first + i] = logs[i] - own[i];
        s->likeliest[first + i] = best[i];
    }
}

/* softmax(parts, totals, losses, likeliest, logits, labels) */
KERNEL(softmax) {
    Arrays arrays;
    NEEDS(6);
    if (!take(&arrays, args, 6, 15)) return NULL;
    size rows = BYTES(1) / 4, records = BYTES(5) / 8, all = BYTES(4);
    size classes = rows ? all / 4 / rows : 0;
    if (!records || !classes || rows % records || BYTES(0) != all || all != 4 * rows * classes ||
        BYTES(2) != 4 * rows || BYTES(3) != 4 * rows || !within(AT(int64_t, 5), records, classes))
        return wrong(&arrays, "arrays that do not fit each other");
    Softmax s = {AT(float, 4), AT(int64_t, 5), AT(float, 0), AT(float, 1),
                 AT(float, 2), AT(int32_t, 3), classes,      records};
    float *turned = malloc(4 * LANES * classes);
    if (!turned) return done(&arrays, PyErr_NoMemory());
    for (size i = 0; i < rows; i += LANES)
        softmax_rows(&s, i, rows - i < LANES ? rows - i : LANES, turned);
    free(turned);
    return nothing(&arrays);
}

WIDE static void softmax_slopes(const float *parts, const float *totals, const int64_t *labels,
                                float weight, float *out, size classes, size records) {
    for (size i = 0; i < records; i++, parts += classes, out += classes) {
        float scale = weight / totals[i];
        for (size k = 0; k < classes; k++) out[k] = parts[k] * scale;
        out[labels[i]] -= weight;
    }
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
    softmax_slopes(AT(float, 1) + first * classes, AT(float, 2) + first, labels, (float)weight,
                   AT(float, 0), classes, records);
    return nothing(&arrays);
}

/* right(likeliest, labels, first, stop) */
KERNEL(right) {
    Arrays arrays;
    NEEDS(4);
    size first = PyLong_AsSsize_t(args[2]), stop = PyLong_AsSsize_t(args[3]), count = 0;
    if (PyErr_Occurred() || !take(&arrays, args, 2, 0)) return NULL;
    size records = BYTES(1) / 8;
    if (first < 0 || stop > BYTES(0) / 4 || !records || first % records || stop % records)
        return wrong(&arrays, "arrays that do not fit each other");
    for (size start = first; start < stop; start += records)
        for (size i = 0; i < records; i++)
            count += AT(int32_t, 0)[start + i] == AT(int64_t, 1)[i];
    return done(&arrays, PyLong_FromSsize_t(count));
}

/* ---- checksums ----------------------------------------------------------------------------- */

#if defined(__x86_64__) && defined(__GNUC__)
#define FOLD(x, by) \
    _mm_xor_si128(_mm_clmulepi64_si128(x, by, 0x00), _mm_clmulepi64_si128(x, by, 0x11))
#define PART(at) _mm_loadu_si128((const __m128i *)(at))

/* CRC-32 of at least 64 bytes, a multiple of 16, by carry-less products: Gopal et al., "Fast CRC
 * Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009; bits reflected. */
__attribute__((target("pclmul,sse4.1"))) static uint32_t folded(const uint8_t *at, size count, uint32_t crc) {
    __m128i by = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
    __m128i a = _mm_xor_si128(PART(at), _mm_cvtsi32_si128((int)crc)), b = PART(at + 16);
    __m128i c = PART(at + 32), d = PART(at + 48);
    for (at += 64, count -= 64; count >= 64; at += 64, count -= 64) {
        a = _mm_xor_si128(FOLD(a, by), PART(at));
        b = _mm_xor_si128(FOLD(b, by), PART(at + 16));
        c = _mm_xor_si128(FOLD(c, by), PART(at + 32));
        d = _mm_xor_si128(FOLD(d, by), PART(at + 48));
    }
    by = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    a = _mm_xor_si128(FOLD(a, by), b);
    a = _mm_xor_si128(FOLD(a, by), c);
    a = _mm_xor_si128(FOLD(a, by), d);
    for (; count >= 16; at += 16, count -= 16) a = _mm_xor_si128(FOLD(a, by), PART(at));
    __m128i low = _mm_set_epi32(0, -1, 0, -1), rest;
    a = _mm_xor_si128(_mm_srli_si128(a, 8), _mm_clmulepi64_si128(a, by, 0x10)); /* to 64 bits */
    rest = _mm_srli_si128(a, 4);
    a = _mm_clmulepi64_si128(_mm_and_si128(a, low), _mm_set_epi64x(0, 0x0163cd6124), 0x00);
    a = _mm_xor_si128(a, rest);
    by = _mm_set_epi64x(0x01f7011641, 0x01db710641); /* Barrett: to 32 bits */
    rest = _mm_clmulepi64_si128(_mm_and_si128(a, low), by, 0x10);
    rest = _mm_clmulepi64_si128(_mm_and_si128(rest, low), by, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(a, rest), 1);
}
#define FOLDS __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1")
#else
#define FOLDS 0
static uint32_t folded(const uint8_t *at, size count, uint32_t crc) { return crc; }
#endif

/* checksum(content, start) */
KERNEL(checksum) {
    static const uint32_t halves[16] = { /* of four bits each */
        0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4, 0x4db26158, 0x5005713c,
        0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c, 0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c};
    Arrays arrays;
    NEEDS(2);
    uint32_t crc = ~(uint32_t)PyLong_AsUnsignedLong(args[1]);
    if (PyErr_Occurred() || !take(&arrays, args, 1, 0)) return NULL;
    const uint8_t *at = AT(uint8_t, 0);
    size count = BYTES(0), whole = count & ~(size)15;
    if (whole >= 64 && FOLDS) crc = folded(at, whole, crc), at += whole, count -= whole;
    for (; count > 0; at++, count--) {
        crc ^= *at;
        crc = crc >> 4 ^ halves[crc & 15];
        crc = crc >> 4 ^ halves[crc & 15];
    }
    return done(&arrays, PyLong_FromUnsignedLong(~crc));
}

static PyMethodDef methods[] = {
    FAST(add), FAST(add_normals), FAST(add_signs), FAST(ages), FAST(apart), FAST(bounded),
    FAST(checksum), FAST(descend), FAST(distinct), FAST(gather), FAST(highest), FAST(normal_squares), FAST(normals), FAST(right),
    FAST(scatter), FAST(signs), FAST(slopes), FAST(softmax), FAST(squares), FAST(stamp),
    FAST(start), {0}};
static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "_compiled", .m_size = 0, .m_methods = methods};

PyMODINIT_FUNC PyInit__compiled(void) { return PyModuleDef_Init(&module); }
