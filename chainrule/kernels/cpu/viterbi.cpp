// The search of models/hmm/viterbi.py: the same sums and the same choices, so that every bit is the same.
//
// Several texts run side by side, so that one waits for no sum of another. A row of any table has `width` numbers, a
// multiple of LANES; those of states that do not exist are -inf.
#include <cmath>
#include <cstdint>

constexpr double IMPOSSIBLE = -INFINITY;    // its logarithm
constexpr int TOGETHER = 4;
#if defined(__AVX512F__)
constexpr int LANES = 8, MOST_PARTS = 4;
#elif defined(__AVX__)
constexpr int LANES = 4, MOST_PARTS = 2;    // half as many registers
#else
constexpr int LANES = 2, MOST_PARTS = 4;
#endif

typedef double Numbers __attribute__((vector_size(8 * LANES), aligned(8), may_alias));

struct Model {
    int64_t states, width;
    const double *initial;       // log π
    const double *transition;    // log a, a row for each state
    const double *arrivals;      // its transpose, a row for each next state, and a row of zeros: no state follows
    const double *emission;      // log b, a row for each symbol
};

struct Text {
    const int64_t *tokens;
    int64_t *path;
    double *deltas;    // a row for each token
    int64_t length;
};

static Numbers &numbers(double *from) { return *(Numbers *)from; }
static const Numbers &numbers(const double *from) { return *(const Numbers *)from; }
static Numbers larger(Numbers one, Numbers other) { return one > other ? one : other; }

// log δ_s(t) = log b_{s,xt} + max_{s'} (log δ_{s'}(t-1) + log a_{s',s}) for PARTS · LANES states s, from `first` on.
template <int TEXTS, int PARTS>
static inline void step(const Model &model, const Text *texts, int64_t time, int64_t first) {
    const double *before[TEXTS], *moves = model.transition + first;
    Numbers best[TEXTS][PARTS];
    for (int text = 0; text < TEXTS; text++) {
        before[text] = texts[text].deltas + (time - 1) * model.width;
        for (int part = 0; part < PARTS; part++) best[text][part] = Numbers{} + IMPOSSIBLE;
    }
    for (int64_t state = 0; state < model.states; state++, moves += model.width)
        for (int text = 0; text < TEXTS; text++)
            for (int part = 0; part < PARTS; part++)
                best[text][part] = larger(before[text][state] + numbers(moves + part * LANES), best[text][part]);
    for (int text = 0; text < TEXTS; text++) {
        double *delta = texts[text].deltas + time * model.width + first;
        const double *symbol = model.emission + texts[text].tokens[time] * model.width + first;
        for (int part = 0; part < PARTS; part++)
            numbers(delta + part * LANES) = best[text][part] + numbers(symbol + part * LANES);
    }
}

template <int TEXTS>
static void forward(const Model &model, const Text *texts, int64_t time, int64_t end) {
    for (; time < end; time++) {
        int64_t first = 0;
        if (time > 0) {
            constexpr int MANY = MOST_PARTS * LANES;
            for (; first + MANY <= model.width; first += MANY) step<TEXTS, MOST_PARTS>(model, texts, time, first);
            for (; first < model.width; first += LANES) step<TEXTS, 1>(model, texts, time, first);
            continue;
        }
        for (int text = 0; text < TEXTS; text++)
            for (int64_t state = 0; state < model.width; state++)
                texts[text].deltas[state] =
                    model.initial[state] + model.emission[texts[text].tokens[0] * model.width + state];
    }
}

// The argmax of log δ_s(t) + log a_{s,next}, the first of equal ones.
static int64_t first_best(const Model &model, const double *delta, const double *moves) {
    Numbers best = Numbers{} + IMPOSSIBLE;
    for (int64_t state = 0; state < model.width; state += LANES)
        best = larger(numbers(delta + state) + numbers(moves + state), best);
    double most = best[0];
    for (int lane = 1; lane < LANES; lane++) most = best[lane] > most ? best[lane] : most;
    int64_t first = 0;
    for (int64_t state = model.states - 1; state >= 0; state--)
        first = delta[state] + moves[state] == most ? state : first;
    return first;
}

template <int TEXTS>
static void backward(const Model &model, const Text *texts, int64_t begin, int64_t time) {
    while (time-- > begin)
        for (int text = 0; text < TEXTS; text++) {
            auto [tokens, path, deltas, length] = texts[text];
            int64_t next = time + 1 < length ? path[time + 1] : model.states;
            path[time] = first_best(model, deltas + time * model.width, model.arrivals + next * model.width);
        }
}

static bool are_symbols(const int64_t *tokens, int64_t length, int64_t symbols) {
    bool all = true;
    for (int64_t time = 0; time < length; time++) all &= (uint64_t)tokens[time] < (uint64_t)symbols;
    return all;
}

// Texts go from the longest to the shortest. `firsts`: where each begins in `tokens` and in `paths`. `room`: for the
// deltas of the TOGETHER longest texts. False where a token is no symbol.
extern "C" bool viterbi(
    int64_t states, int64_t width, int64_t symbols, const double *initial, const double *transition, const double *arrivals,
    const double *emission, int64_t count, const int64_t *firsts, const int64_t *lengths, const int64_t *tokens,
    int64_t *paths, double *log_p, double *room) {
    const Model model{states, width, initial, transition, arrivals, emission};
    for (int64_t done = 0; done < count;) {
        const int some = count - done < TOGETHER ? 1 : TOGETHER;
        Text texts[TOGETHER];
        double *deltas = room;
        for (int text = 0; text < some; text++) {
            const int64_t first = firsts[done + text], length = lengths[done + text];
            if (!are_symbols(tokens + first, length, symbols)) return false;
            texts[text] = {tokens + first, paths + first, deltas, length};
            deltas += length * width;
        }
        const int64_t shared = some == TOGETHER ? texts[some - 1].length : 0;    // what is longer runs alone
        forward<TOGETHER>(model, texts, 0, shared);
        for (int text = 0; text < some; text++) {
            forward<1>(model, texts + text, shared, texts[text].length);
            backward<1>(model, texts + text, shared, texts[text].length);
        }
        backward<TOGETHER>(model, texts, 0, shared);
        for (int text = 0; text < some; text++, done++) {
            const int64_t last = texts[text].length - 1;
            log_p[done] = texts[text].deltas[last * width + texts[text].path[last]];
        }
    }
    return true;
}
