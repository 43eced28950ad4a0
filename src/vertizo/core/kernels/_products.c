/* Products of small matrices with what a linear layer does before and after them, in one pass.
 *
 * `vertizo.core.kernels.plain_products` says what every function is for. Weights are those of a layer at
 * `first` in a flat vector of parameters, [outputs, inputs] row by row and a bias behind.
 */
#include "_arguments.h"
#include <pthread.h>
#include <stdlib.h>

typedef struct {
    const float *at;
    size down, across;  /* from row to row, and from column to column */
    const int64_t *ids; /* which rows, in order; NULL for all */
} Matrix;

/* out [rows, columns] = left [rows, inner] times matrix [inner, columns], and what follows. */
typedef struct {
    size rows, columns, inner;
    Matrix left;
    const float *matrix;
    size stride;        /* between rows of what is stored */
    int transposed;     /* whether that is [columns, inner] */
    const float *bias, *common; /* added to every row; added as a matrix */
    const float *kept;          /* where this is not positive, out is 0 */
    int relu;
    float *out;
    size apart; /* from a point's out to the next one's */
    /* A second matrix and bias, of whose product each point adds its step: */
    const float *direction, *slope_bias, *steps;
    size points;
    size left_apart; /* from a point's left to the next one's, where each has its own */
    /* or points at which columns of left from `start` on, `shifted` in all, are raised by `shift`;
       what is not raised is the last point: */
    size shifts, start, shifted;
    Matrix shift;
    size shift_apart;
} Product;

#define HEIGHT 6 /* rows of a tile */
#define CHUNK 64 /* rows of a panel */
#define PANELS 3
#define CLASH 256 /* numbers: rows so far apart share few places of the nearest cache */
#define FEW 4 /* tiles that are not worth a copy of their panel */

/* Rows of a tile, and those that are fetched for the one below it. */
typedef struct {
    const float *row[HEIGHT], *next[HEIGHT];
    size across;
} Left;

static inline Left rows_at(const Matrix *matrix, size i, size to) {
    Left left;
    for (size r = 0; r < 2 * HEIGHT; r++) {
        size row = i + r < to ? i + r : to - 1;
        const float *at = matrix->at + (matrix->ids ? matrix->ids[row] : row) * matrix->down;
        if (r < HEIGHT) left.row[r] = at;
        else left.next[r - HEIGHT] = at;
    }
    left.across = matrix->across;
    return left;
}

typedef float Four __attribute__((vector_size(16), aligned(4)));
#if defined(__clang__) || __GNUC__ >= 12
#define PICK(x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#else
#define PICK(x, y, ...) __builtin_shuffle(x, y, (__typeof__(int __attribute__((vector_size(16))))){__VA_ARGS__})
#endif

#if defined(__x86_64__) && defined(__GNUC__)
#define NAME _avx512
#define TARGET __attribute__((target("avx512f,fma")))
#define LANES 16
#define WIDTH 4
#include "_tiles.h"
#undef NAME
#undef TARGET
#undef LANES
#undef WIDTH
#define NAME _avx2
#define TARGET __attribute__((target("avx2,fma")))
#define LANES 8
#define WIDTH 2
#include "_tiles.h"
#undef NAME
#undef TARGET
#undef LANES
#undef WIDTH
#endif
#define NAME _any
#define TARGET
#define LANES 4
#define WIDTH 4
#include "_tiles.h"

#define MOST_ACROSS 64 /* columns of a whole tile, at most */

static void (*multiply)(const Product *, size, size, float *) = multiply_any;
static int widest = 4;

/* ---- one product, by as many threads as it is worth --------------------------------------- */

#define KEPT (1 << 19) /* numbers of room that a thread keeps */
#define WORTH (1 << 23) /* additions that are worth a thread */
#define LONG (1 << 21)  /* additions during which other threads may use Python */

static _Thread_local float *kept_room = NULL;

typedef struct {
    const Product *product;
    size from, to;
    int failed;
} Share;

static void *run(void *given) {
    Share *share = given;
    const Product *p = share->product;
    size numbers = PANELS * p->inner * MOST_ACROSS;
    float *room = numbers <= KEPT ? kept_room : NULL;
    if (!room) room = aligned_alloc(64, 4 * (numbers <= KEPT ? KEPT : numbers));
    share->failed = !room;
    if (share->failed) return NULL;
    if (numbers <= KEPT) kept_room = room;
    multiply(p, share->from, share->to, room);
    if (numbers > KEPT) free(room);
    return NULL;
}

static void *run_apart(void *given) {
    run(given);
    free(kept_room);
    kept_room = NULL;
    return NULL;
}

/* 1 unless there was no memory. The threads' number shows in no digit. */
static int product(const Product *p, size threads) {
    double work = (double)p->rows * p->columns * (p->inner * (p->direction ? 2 : 1) + p->shifts * p->shifted);
    if (threads > work / WORTH) threads = (size)(work / WORTH);
    if (threads > p->rows / HEIGHT) threads = p->rows / HEIGHT;
    if (threads > 64) threads = 64;
    if (threads < 2) {
        Share all = {p, 0, p->rows, 0};
        run(&all);
        return !all.failed;
    }
    Share shares[64];
    pthread_t others[64];
    size tiles = (p->rows + HEIGHT - 1) / HEIGHT, at = 0;
    int failed = 0, begun[64];
    for (size k = 0; k < threads; k++) {
        size to = (k + 1) * tiles / threads * HEIGHT;
        shares[k] = (Share){p, at, to < p->rows ? to : p->rows, 0};
        at = to;
        begun[k] = k && !pthread_create(&others[k], NULL, run_apart, &shares[k]);
        if (k && !begun[k]) run(&shares[k]);
    }
    run(&shares[0]);
    for (size k = 0; k < threads; k++) {
        if (begun[k]) pthread_join(others[k], NULL);
        failed |= shares[k].failed;
    }
    return !failed;
}

/* The product `p` of each point in turn; what is given last says where its arrays are. */
#define EACH(points, threads, ...) \
    do { \
        int whole = 1; \
        PyThreadState *state = NULL; \
        double work = (double)p.rows * p.columns * p.inner * (points); \
        if (work > LONG) state = PyEval_SaveThread(); \
        for (size point = 0; whole && point < (points); point++) { \
            __VA_ARGS__; \
            whole = product(&p, threads); \
        } \
        if (state) PyEval_RestoreThread(state); \
        if (!whole) return done(&arrays, PyErr_NoMemory()); \
    } while (0)

/* ---- shapes ------------------------------------------------------------------------------- */

#define NDIM(place) (arrays.views[place].ndim)
#define LENGTH(place, back) (arrays.views[place].shape[NDIM(place) - (back)])
#define MISFIT return wrong(&arrays, "arrays that do not fit each other")

/* d, the length of a flat vector. */
#define FLAT(place) \
    if (NDIM(place) != 1) MISFIT; \
    size d = LENGTH(place, 1)

/* Whether array `place` has the numbers of [points, rows, columns]. */
static int is(const Arrays *arrays, int place, size points, size rows, size columns) {
    return arrays->views[place].len == 4 * points * rows * columns;
}

static int layer_fits(size first, size d, size inputs, size outputs, int bias) {
    return first >= 0 && outputs > 0 && inputs > 0 && first + outputs * (inputs + bias) <= d;
}

#define NUMBER(name, place) size name = PyLong_AsSsize_t(args[place])
#define TAKE(count, written) \
    if (PyErr_Occurred() || !take(&arrays, args, count, written)) return NULL

/* ---- forwards ------------------------------------------------------------------------------ */

/* affine(out, x, flat, first, bias, relu, threads) */
KERNEL(affine) {
    Arrays arrays;
    NEEDS(7);
    NUMBER(first, 3); NUMBER(bias, 4); NUMBER(relu, 5); NUMBER(threads, 6);
    TAKE(3, 1);
    FLAT(2);
    if (NDIM(0) < 2 || NDIM(1) != NDIM(0)) MISFIT;
    size rows = LENGTH(1, 2), inputs = LENGTH(1, 1), outputs = LENGTH(0, 1);
    size points = rows > 0 && inputs > 0 ? BYTES(1) / (4 * rows * inputs) : 0;
    if (!layer_fits(first, d, inputs, outputs, bias != 0) || !is(&arrays, 0, points, rows, outputs)
        || !is(&arrays, 1, points, rows, inputs)) MISFIT;
    Product p = {.rows = rows, .columns = outputs, .inner = inputs, .left = {.down = inputs, .across = 1},
                 .stride = inputs, .transposed = 1, .relu = relu != 0};
    p.matrix = AT(float, 2) + first;
    p.bias = bias ? p.matrix + inputs * outputs : NULL;
    EACH(points, threads,
        p.left.at = AT(float, 1) + point * rows * inputs;
        p.out = AT(float, 0) + point * rows * outputs);
    return nothing(&arrays);
}

/* along(out, x, flat, direction, steps, ids, first, bias, relu, threads) */
KERNEL(along) {
    Arrays arrays;
    NEEDS(10);
    NUMBER(first, 6); NUMBER(bias, 7); NUMBER(relu, 8); NUMBER(threads, 9);
    TAKE(6, 1);
    FLAT(2);
    if (NDIM(0) != 3 || NDIM(1) < 2 || NDIM(3) != 1) MISFIT;
    const int64_t *ids = BYTES(5) ? AT(int64_t, 5) : NULL;
    int each = !ids && NDIM(1) == NDIM(0); /* whether every point has inputs of its own */
    size rows = LENGTH(0, 2), inputs = LENGTH(1, 1), outputs = LENGTH(0, 1);
    size points = BYTES(4) / 4;
    if (!layer_fits(first, LENGTH(3, 1), inputs, outputs, bias != 0)
        || !layer_fits(first, d, inputs, outputs, bias != 0) || !is(&arrays, 0, points, rows, outputs)) MISFIT;
    if (ids ? NDIM(1) != 2 || BYTES(5) != 8 * rows || !within(ids, rows, LENGTH(1, 2))
            : !is(&arrays, 1, each ? points : 1, rows, inputs)) MISFIT;
    Product p = {.rows = rows, .columns = outputs, .inner = inputs,
                 .left = {.at = AT(float, 1), .down = inputs, .across = 1, .ids = ids},
                 .matrix = AT(float, 2) + first, .stride = inputs, .transposed = 1,
                 .direction = AT(float, 3) + first, .steps = AT(float, 4), .points = points,
                 .left_apart = each ? rows * inputs : 0, .out = AT(float, 0), .apart = rows * outputs,
                 .relu = relu != 0};
    p.bias = bias ? p.matrix + inputs * outputs : NULL;
    p.slope_bias = bias ? p.direction + inputs * outputs : NULL;
    if (points) EACH(1, threads, );
    return nothing(&arrays);
}

/* moved(out, x, shifts, flat, start, first, bias, relu, threads) */
KERNEL(moved) {
    Arrays arrays;
    NEEDS(9);
    NUMBER(start, 4); NUMBER(first, 5); NUMBER(bias, 6); NUMBER(relu, 7); NUMBER(threads, 8);
    TAKE(4, 1);
    FLAT(3);
    if (NDIM(0) != 3 || NDIM(1) != 2 || NDIM(2) != 3) MISFIT;
    size rows = LENGTH(1, 2), inputs = LENGTH(1, 1), outputs = LENGTH(0, 1);
    size points = LENGTH(2, 3), columns = LENGTH(2, 1);
    if (!layer_fits(first, d, inputs, outputs, bias != 0) || columns < 1 || points < 1 || start < 0
        || start + columns > inputs || !is(&arrays, 0, points + 1, rows, outputs)
        || !is(&arrays, 1, 1, rows, inputs) || !is(&arrays, 2, points, rows, columns)) MISFIT;
    Product p = {.rows = rows, .columns = outputs, .inner = inputs,
                 .left = {.at = AT(float, 1), .down = inputs, .across = 1},
                 .matrix = AT(float, 3) + first, .stride = inputs, .transposed = 1, .relu = relu != 0,
                 .out = AT(float, 0), .apart = rows * outputs, .shifts = points, .start = start,
                 .shifted = columns, .shift = {.at = AT(float, 2), .down = columns, .across = 1},
                 .shift_apart = rows * columns};
    p.bias = bias ? p.matrix + inputs * outputs : NULL;
    EACH(1, threads, );
    return nothing(&arrays);
}

/* raised(out, shifts, common, flat, first, start, inputs, relu, threads) */
KERNEL(raised) {
    Arrays arrays;
    NEEDS(9);
    NUMBER(first, 4); NUMBER(start, 5); NUMBER(inputs, 6); NUMBER(relu, 7); NUMBER(threads, 8);
    TAKE(4, 1);
    FLAT(3);
    if (NDIM(0) != 3 || NDIM(1) != 3) MISFIT;
    size rows = LENGTH(1, 2), columns = LENGTH(1, 1), outputs = LENGTH(0, 1);
    size points = LENGTH(0, 3);
    if (!layer_fits(first, d, inputs, outputs, 0) || start < 0 || columns < 1 || start + columns > inputs
        || !is(&arrays, 0, points, rows, outputs) || !is(&arrays, 1, points, rows, columns)
        || !is(&arrays, 2, 1, rows, outputs)) MISFIT;
    Product p = {.rows = rows, .columns = outputs, .inner = columns, .left = {.down = columns, .across = 1},
                 .matrix = AT(float, 3) + first + start, .stride = inputs, .transposed = 1,
                 .common = AT(float, 2), .relu = relu != 0};
    EACH(points, threads,
        p.left.at = AT(float, 1) + point * rows * columns;
        p.out = AT(float, 0) + point * rows * outputs);
    return nothing(&arrays);
}

/* ---- backwards ----------------------------------------------------------------------------- */

/* back(out, gradient, flat, kept, first, masked, threads) */
KERNEL(back) {
    Arrays arrays;
    NEEDS(7);
    NUMBER(first, 4); NUMBER(masked, 5); NUMBER(threads, 6);
    TAKE(4, 1);
    FLAT(2);
    if (NDIM(0) < 2 || NDIM(1) < 2) MISFIT;
    size rows = LENGTH(1, 2), outputs = LENGTH(1, 1), inputs = LENGTH(0, 1);
    if (!layer_fits(first, d, inputs, outputs, 0) || !is(&arrays, 0, 1, rows, inputs)
        || !is(&arrays, 1, 1, rows, outputs) || (masked && !is(&arrays, 3, 1, rows, inputs))) MISFIT;
    Product p = {.rows = rows, .columns = inputs, .inner = outputs,
                 .left = {.at = AT(float, 1), .down = outputs, .across = 1},
                 .matrix = AT(float, 2) + first, .stride = inputs,
                 .kept = masked ? AT(float, 3) : NULL, .out = AT(float, 0)};
    EACH(1, threads, );
    return nothing(&arrays);
}

/* outer(flat, gradient, x, first, bias, threads) */
KERNEL(outer) {
    Arrays arrays;
    NEEDS(6);
    NUMBER(first, 3); NUMBER(bias, 4); NUMBER(threads, 5);
    TAKE(3, 1);
    FLAT(0);
    if (NDIM(1) < 2 || NDIM(2) < 2) MISFIT;
    size rows = LENGTH(1, 2), outputs = LENGTH(1, 1), inputs = LENGTH(2, 1);
    if (!layer_fits(first, d, inputs, outputs, bias != 0) || !is(&arrays, 1, 1, rows, outputs)
        || !is(&arrays, 2, 1, rows, inputs)) MISFIT;
    Product p = {.rows = outputs, .columns = inputs, .inner = rows,
                 .left = {.at = AT(float, 1), .down = 1, .across = outputs},
                 .matrix = AT(float, 2), .stride = inputs, .out = AT(float, 0) + first};
    EACH(1, threads, );
    if (bias) {
        float *sums = AT(float, 0) + first + inputs * outputs;
        const float *gradient = AT(float, 1);
        memset(sums, 0, 4 * outputs);
        for (size i = 0; i < rows; i++)
            for (size j = 0; j < outputs; j++) sums[j] += gradient[i * outputs + j];
    }
    return nothing(&arrays);
}

/* lanes([most]): numbers of one vector, of those that this processor has; for tests, fewer. */
static PyObject *lanes(PyObject *Py_UNUSED(module), PyObject *const *args, size given) {
    int most = 16;
    if (given) {
        most = (int)PyLong_AsLong(args[0]);
        if (PyErr_Occurred()) return NULL;
    }
    multiply = multiply_any;
    widest = 4;
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_cpu_init();
    if (most >= 8 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        multiply = multiply_avx2, widest = 8;
    if (most >= 16 && __builtin_cpu_supports("avx512f")) multiply = multiply_avx512, widest = 16;
#endif
    return PyLong_FromLong(widest);
}

static PyMethodDef methods[] = {FAST(affine), FAST(along), FAST(moved), FAST(raised),
                                FAST(back),   FAST(outer), FAST(lanes),      {0}};

static int begin(PyObject *Py_UNUSED(module)) {
    PyObject *found = lanes(NULL, NULL, 0);
    Py_XDECREF(found);
    return found ? 0 : -1;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, begin}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "_products", .m_size = 0,
                                    .m_methods = methods, .m_slots = slots};

PyMODINIT_FUNC PyInit__products(void) { return PyModuleDef_Init(&module); }
