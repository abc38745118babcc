// Sweeps of libDAI's parallel belief propagation over a pairwise model, for speed.py.
//
//     g++ -O3 -DDAI_WITH_BP -I LIBDAI/include libdai_bp.cpp -L LIBDAI/lib -ldai -lgmpxx -lgmp -o libdai_bp
//     LIBDAI_BP=./libdai_bp python benchmarks/message_passing/speed.py
//
// (with all the -DDAI_WITH_* that the library was built with, and no debugging checks in either).
//
// libdai_bp MODEL SWEEPS BELIEFS: MODEL is int64 n, S, E, then float64 log potentials of nodes
// [n, S] and of edges [E, S, S], then int64 edges [E, 2]. Writes the beliefs [n, S] and prints the
// processor seconds of the sweeps alone, and their number.
#include <dai/alldai.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <string>
#include <vector>

template <class T>
std::vector<T> read(FILE* file, size_t count) {
    std::vector<T> values(count);
    if (fread(values.data(), sizeof(T), count, file) != count) throw std::string("the file ends");
    return values;
}

int main(int, char** argv) {
    FILE* file = fopen(argv[1], "rb");
    auto head = read<int64_t>(file, 3);
    size_t n = head[0], S = head[1], E = head[2];
    auto unary = read<double>(file, n * S), pair = read<double>(file, E * S * S);
    auto edges = read<int64_t>(file, 2 * E);
    fclose(file);
    std::vector<dai::Var> nodes;
    for (size_t i = 0; i < n; i++) nodes.push_back(dai::Var(i, S));
    std::vector<dai::Factor> factors;
    for (size_t i = 0; i < n; i++) {
        dai::Factor f(nodes[i]);
        for (size_t s = 0; s < S; s++) f.set(s, std::exp(unary[i * S + s]));
        factors.push_back(f);
    }
    for (size_t e = 0; e < E; e++) {
        size_t i = edges[2 * e], j = edges[2 * e + 1];
        dai::Factor f(dai::VarSet(nodes[i], nodes[j]));
        for (size_t a = 0; a < S; a++)
            for (size_t b = 0; b < S; b++)  // the variable of the lower number is fastest
                f.set(i < j ? a + S * b : b + S * a, std::exp(pair[(e * S + a) * S + b]));
        factors.push_back(f);
    }
    dai::PropertySet options;
    options.set("maxiter", (size_t)std::stoul(argv[2]));
    options.set("tol", (dai::Real)1e-300);
    options.set("verbose", (size_t)0);
    dai::BP bp(dai::FactorGraph(factors), options("updates", std::string("PARALL"))("logdomain", false)(
                                              "damping", (dai::Real)0.0)("inference", std::string("SUMPROD")));
    bp.init();
    clock_t begin = clock();
    bp.run();
    printf("%.9f %zu\n", double(clock() - begin) / CLOCKS_PER_SEC, bp.Iterations());
    FILE* out = fopen(argv[3], "wb");
    for (size_t i = 0; i < n; i++) {
        dai::Factor belief = bp.belief(nodes[i]);
        for (size_t s = 0; s < S; s++) {
            double value = belief[s];
            fwrite(&value, sizeof value, 1, out);
        }
    }
    fclose(out);
}
