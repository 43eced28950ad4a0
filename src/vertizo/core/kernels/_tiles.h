/* Part of `_products.c`, for one kind of processor: NAME, TARGET, LANES and WIDTH are defined there.
 *
 * A tile is HEIGHT rows by up to WIDTH vectors of the result, held in registers while one pass over
 * the inner index adds up all of it. Every element is one chain of fused additions in the order of
 * that index, whatever the tile: neither its place nor what is beside it shows in its digits.
 */
#define CAT2(a, b) a##b
#define CAT(a, b) CAT2(a, b)
#define OWN(name) CAT(name, NAME)
#define ACROSS (WIDTH * LANES) /* columns of a whole tile */

typedef float OWN(Vector) __attribute__((vector_size(4 * LANES), aligned(4)));

/* into [rows][ACROSS] = left times the panel [inner][step]; `rows` and `vectors` are constants. */
static inline __attribute__((always_inline)) TARGET void OWN(tile)(
    int rows, int vectors, const Left *left, size inner, const float *panel, size step, float *into
) {
    OWN(Vector) sums[HEIGHT][WIDTH] = {{{0}}};
    size across = left->across;
    for (size start = 0; start < inner; start += LANES) {
        size stop = start + LANES < inner ? start + LANES : inner;
        if (across == 1)
            for (int r = 0; r < rows; r++) FETCH(left->next[r] + start, 0);
        for (size k = start; k < stop; k++) {
            OWN(Vector) right[WIDTH];
            for (int v = 0; v < vectors; v++)
                right[v] = *(const OWN(Vector) *)(panel + k * step + v * LANES);
            for (int r = 0; r < rows; r++) {
                float value = left->row[r][k * across];
                for (int v = 0; v < vectors; v++) sums[r][v] += value * right[v];
            }
        }
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++)
            *(OWN(Vector) *)(into + r * ACROSS + v * LANES) = sums[r][v];
}

#define ROWS(count, vectors) \
    case count: OWN(tile)(count, vectors, left, inner, panel, step, into); return
#define COLUMNS(vectors) \
    static TARGET void CAT(OWN(rows), vectors)( \
        int rows, const Left *left, size inner, const float *panel, size step, float *into \
    ) { \
        switch (rows) { \
            ROWS(1, vectors); ROWS(2, vectors); ROWS(3, vectors); \
            ROWS(4, vectors); ROWS(5, vectors); ROWS(6, vectors); \
        } \
    }
COLUMNS(1)
COLUMNS(2)
#if WIDTH == 4
COLUMNS(3)
COLUMNS(4)
#endif

static TARGET void OWN(block)(
    int rows, int vectors, const Left *left, size inner, const float *panel, size step, float *into
) {
    switch (vectors) {
        case 1: CAT(OWN(rows), 1)(rows, left, inner, panel, step, into); return;
        case 2: CAT(OWN(rows), 2)(rows, left, inner, panel, step, into); return;
#if WIDTH == 4
        case 3: CAT(OWN(rows), 3)(rows, left, inner, panel, step, into); return;
        case 4: CAT(OWN(rows), 4)(rows, left, inner, panel, step, into); return;
#endif
    }
}

/* Columns `first` on of a matrix that is stored with its columns as rows: panel [inner][step].
 * Some rows of the panel at a time, so that they stay in the nearest cache while columns are added. */
static TARGET void OWN(turn)(
    const Product *p, const float *matrix, size first, size count, size step, float *panel
) {
    size stride = p->stride;
    matrix += first * stride;
    for (size start = 0; start < p->inner; start += CHUNK) {
        size stop = start + CHUNK < p->inner ? start + CHUNK : p->inner, j = 0;
        for (; j + 4 <= count; j += 4) {
            const float *from = matrix + j * stride;
            size k = start;
            for (; k + 4 <= stop; k += 4) { /* four by four, in registers */
                Four a = *(const Four *)(from + k), b = *(const Four *)(from + stride + k);
                Four c = *(const Four *)(from + 2 * stride + k);
                Four d = *(const Four *)(from + 3 * stride + k);
                Four ac = PICK(a, c, 0, 4, 1, 5), bd = PICK(b, d, 0, 4, 1, 5);
                Four ca = PICK(a, c, 2, 6, 3, 7), db = PICK(b, d, 2, 6, 3, 7);
                float *to = panel + k * step + j;
                *(Four *)to = PICK(ac, bd, 0, 4, 1, 5);
                *(Four *)(to + step) = PICK(ac, bd, 2, 6, 3, 7);
                *(Four *)(to + 2 * step) = PICK(ca, db, 0, 4, 1, 5);
                *(Four *)(to + 3 * step) = PICK(ca, db, 2, 6, 3, 7);
            }
            for (; k < stop; k++)
                for (int l = 0; l < 4; l++) panel[k * step + j + l] = from[l * stride + k];
        }
        for (; j < count; j++)
            for (size k = start; k < stop; k++) panel[k * step + j] = matrix[j * stride + k];
        for (size k = start; count < step && k < stop; k++)
            memset(panel + k * step + count, 0, 4 * (step - count));
    }
}

/* The same of a matrix that is stored as it is. */
static TARGET void OWN(copy)(
    const Product *p, size first, size count, size step, float *panel
) {
    for (size k = 0; k < p->inner; k++, panel += step) {
        memcpy(panel, p->matrix + k * p->stride + first, 4 * count);
        memset(panel + count, 0, 4 * (step - count));
    }
}

/* Bias, and what is added as a matrix, to a tile whose first element is at (i, first). */
static TARGET void OWN(raise)(
    size i, int rows, size first, size count, size columns, const float *bias, const float *common,
    float *tile
) {
    for (int r = 0; r < rows; r++, tile += ACROSS) {
        if (bias)
            for (size j = 0; j < count; j++) tile[j] += bias[first + j];
        if (common)
            for (size j = 0; j < count; j++) tile[j] += common[(i + r) * columns + first + j];
    }
}

#define EVERY(value) \
    for (size j = 0; j < count; j++) out[j] = (value)
#define POSITIVE(value) ((value) < 0 ? 0 : (value)) /* NaN stays */

/* out = plain, or plain + slope where there is one, `step` times; then through a ReLU, or back. */
static TARGET void OWN(put)(
    const Product *p, size i, int rows, size first, size count, float *out, const float *plain,
    float step, const float *slope
) {
    out += i * p->columns + first;
    for (int r = 0; r < rows; r++, plain += ACROSS, slope += ACROSS, out += p->columns) {
        const float *kept = p->kept ? p->kept + (i + r) * p->columns + first : NULL;
        if (kept) EVERY(kept[j] > 0 ? plain[j] : 0);
        else if (step != 0 && p->relu) EVERY(POSITIVE(plain[j] + step * slope[j]));
        else if (step != 0) EVERY(plain[j] + step * slope[j]);
        else if (p->relu) EVERY(POSITIVE(plain[j]));
        else EVERY(plain[j]);
    }
}
#undef EVERY
#undef POSITIVE

/* Fetch a tile that will be written, or read, once its product is known. */
static inline void OWN(expect)(
    const float *matrix, size i, int rows, size columns, size first, size count, const int written
) {
    matrix += i * columns + first;
    for (int r = 0; r < rows; r++, matrix += columns)
        for (size j = 0; j < count; j += 16) {
            if (written) FETCH(matrix + j, 1);
            else FETCH(matrix + j, 0);
        }
}

/* Points with inputs of their own, each with the matrix moved by its step: panels of both are given,
 * and room for a third. */
static TARGET void OWN(each)(
    const Product *p, size from, size to, size first, size count, int vectors, const float *panel,
    const float *other, float *third
) {
    float plain[HEIGHT * ACROSS];
    size step = vectors * LANES;
    for (size point = 0; point < p->points; point++) {
        float by = p->steps[point];
        for (size at = 0; at < p->inner * step; at++) third[at] = panel[at] + by * other[at];
        Matrix own = p->left;
        own.at += point * p->left_apart;
        for (size i = from; i < to; i += HEIGHT) {
            int rows = to - i < HEIGHT ? (int)(to - i) : HEIGHT;
            Left left = rows_at(&own, i, to);
            OWN(block)(rows, vectors, &left, p->inner, third, step, plain);
            for (int r = 0; p->bias && r < rows; r++)
                for (size j = 0; j < count; j++)
                    plain[r * ACROSS + j] += p->bias[first + j] + by * p->slope_bias[first + j];
            OWN(put)(p, i, rows, first, count, p->out + point * p->apart, plain, 0, plain);
        }
    }
}

/* Rows `from` to `to` of a product; `room` is of PANELS · inner · ACROSS numbers. */
static TARGET void OWN(multiply)(const Product *p, size from, size to, float *room) {
    float plain[HEIGHT * ACROSS], slope[HEIGHT * ACROSS];
    float *other = room + p->inner * ACROSS;
    for (size first = 0; first < p->columns; first += ACROSS) {
        size count = p->columns - first < ACROSS ? p->columns - first : ACROSS;
        int vectors = (int)((count + LANES - 1) / LANES);
        size step = vectors * LANES, own = step;
        const float *panel = room;
        if (p->transposed) OWN(turn)(p, p->matrix, first, count, step, room);
        else if (count < step || (p->stride % CLASH == 0 && to - from > FEW * HEIGHT))
            OWN(copy)(p, first, count, step, room);
        else panel = p->matrix + first, own = p->stride;
        if (p->direction) OWN(turn)(p, p->direction, first, count, step, other);
        if (p->left_apart) {
            OWN(each)(p, from, to, first, count, vectors, panel, other, other + p->inner * ACROSS);
            continue;
        }
        for (size i = from; i < to; i += HEIGHT) {
            int rows = to - i < HEIGHT ? (int)(to - i) : HEIGHT;
            Left left = rows_at(&p->left, i, to);
            size points = p->direction ? p->points : p->shifts + 1;
            for (size point = 0; point < points; point++)
                OWN(expect)(p->out + point * p->apart, i, rows, p->columns, first, count, 1);
            if (p->kept) OWN(expect)(p->kept, i, rows, p->columns, first, count, 0);
            OWN(block)(rows, vectors, &left, p->inner, panel, own, plain);
            OWN(raise)(i, rows, first, count, p->columns, p->bias, p->common, plain);
            if (p->direction) {
                OWN(block)(rows, vectors, &left, p->inner, other, step, slope);
                OWN(raise)(i, rows, first, count, p->columns, p->slope_bias, NULL, slope);
                for (size point = 0; point < p->points; point++)
                    OWN(put)(p, i, rows, first, count, p->out + point * p->apart, plain,
                             p->steps[point], slope);
                continue;
            }
            for (size point = 0; point < p->shifts; point++) {
                Matrix own_shift = p->shift;
                own_shift.at += point * p->shift_apart;
                Left shift = rows_at(&own_shift, i, to);
                OWN(block)(rows, vectors, &shift, p->shifted, panel + p->start * own, own, slope);
                OWN(put)(p, i, rows, first, count, p->out + point * p->apart, plain, 1, slope);
            }
            OWN(put)(p, i, rows, first, count, p->out + p->shifts * p->apart, plain, 0, slope);
        }
    }
}

#undef CAT2
#undef CAT
#undef OWN
#undef ACROSS
#undef ROWS
#undef COLUMNS
