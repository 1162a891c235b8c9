#include "tests/oracle/oracle.h"

#include <algorithm>
#include <cmath>

#include "tests/oracle/numbers.h"

namespace pleiad::oracle {
namespace {

// y[T, rows] = x[T, columns] * w[rows, columns]^T
std::vector<double> Project(const std::vector<double>& x, const std::vector<uint16_t>& w, size_t columns,
                            KvRounding rounding) {
  const size_t tokens = x.size() / columns;
  const size_t rows = w.size() / columns;
  std::vector<double> y(tokens * rows);
  std::vector<double> row(columns);
  for (size_t r = 0; r < rows; ++r) {
    for (size_t i = 0; i < columns; ++i) row[i] = Bf16Value(w[r * columns + i]);
    for (size_t t = 0; t < tokens; ++t) {
      const double* e = &x[t * columns];
      double sum = 0;
      double lanes[8] = {};
      size_t i = 0;
      for (; i + 8 <= columns; i += 8) {
        for (size_t j = 0; j < 8; ++j) lanes[j] += e[i + j] * row[i + j];
      }
      for (; i < columns; ++i) sum += e[i] * row[i];
      for (double lane : lanes) sum += lane;
      y[t * rows + r] = rounding == KvRounding::kBf16 ? RoundToBf16(sum) : sum;
    }
  }
  return y;
}

// norm of one group: x * rsqrt(mean(x^2) + eps) * (1 + w)
std::vector<double> Norm(const double* x, const uint16_t* w, size_t n, double eps) {
  double squares = 0;
  for (size_t i = 0; i < n; ++i) squares += x[i] * x[i];
  const double scale = 1 / std::sqrt(squares / static_cast<double>(n) + eps);
  std::vector<double> y(n);
  for (size_t i = 0; i < n; ++i) y[i] = x[i] * scale * (1 + Bf16Value(w[i]));
  return y;
}

double Gate(double s) {
  if (std::isnan(s)) return s;
  const double sign = s > 0 ? 1 : s < 0 ? -1 : 0;
  return 1 / (1 + std::exp(-sign * std::sqrt(std::fmax(std::fabs(s), 1e-6))));
}

double Silu(double c) { return c / (1 + std::exp(-c)); }

}  // namespace

Trace RunTokens(const Model& model, const std::vector<uint32_t>& tokens, const std::vector<double>& highway,
                KvRounding rounding) {
  std::vector<uint64_t> ids = HashTokens(model.hash, model.numbers, tokens);
  std::vector<double> embeddings;
  for (uint64_t id : ids) {
    const std::vector<double> row = model.row(id);
    embeddings.insert(embeddings.end(), row.begin(), row.end());
  }
  Trace trace = RunEmbeddings(model, embeddings, highway, rounding);
  trace.ids = std::move(ids);
  return trace;
}

Trace RunEmbeddings(const Model& model, const std::vector<double>& embeddings, const std::vector<double>& highway,
                    KvRounding rounding) {
  const Shape& shape = model.shape;
  const Weights& weights = model.weights;
  const size_t tokens = embeddings.size() / shape.embed;
  const size_t h = shape.hidden;
  const size_t c = shape.channels();
  const std::vector<double> key = Project(embeddings, weights.key, shape.embed, rounding);
  const std::vector<double> value = Project(embeddings, weights.value, shape.embed, rounding);

  Trace trace;
  trace.embeddings = embeddings;
  std::vector<double> u(tokens * c);
  for (size_t t = 0; t < tokens; ++t) {
    for (size_t s = 0; s < shape.hc; ++s) {
      const size_t at = t * c + s * h;
      const std::vector<double> k = Norm(&key[at], &weights.norm_key[s * h], h, shape.eps);
      const std::vector<double> q = Norm(&highway[at], &weights.norm_query[s * h], h, shape.eps);
      double dot = 0;
      for (size_t i = 0; i < h; ++i) dot += k[i] * q[i];
      const double gate = Gate(dot / std::sqrt(static_cast<double>(h)));
      trace.gate.push_back(gate);
      for (size_t i = 0; i < h; ++i) u[at + i] = gate * value[t * h + i];
      const std::vector<double> x = Norm(&u[at], &weights.norm_conv[s * h], h, shape.eps);
      trace.conv_input.insert(trace.conv_input.end(), x.begin(), x.end());
    }
  }

  trace.delta.resize(tokens * c);
  trace.highway_out.resize(tokens * c);
  for (size_t t = 0; t < tokens; ++t) {
    for (size_t i = 0; i < c; ++i) {
      double conv = 0;
      for (size_t j = 0; j < shape.kernel; ++j) {
        const size_t back = (shape.kernel - 1 - j) * model.dilation();
        if (back > t) continue;
        conv += Bf16Value(weights.conv[i * shape.kernel + j]) * trace.conv_input[(t - back) * c + i];
      }
      trace.delta[t * c + i] = u[t * c + i] + Silu(conv);
      trace.highway_out[t * c + i] = highway[t * c + i] + trace.delta[t * c + i];
    }
  }
  return trace;
}

std::vector<double> ConvRowsAt(const Model& model, const Trace& trace, size_t position) {
  const size_t c = model.shape.channels();
  const size_t rows = model.state_len();
  std::vector<double> state(rows * c);
  for (size_t j = 0; j < rows; ++j) {
    if (position + j < rows) continue;
    const double* x = &trace.conv_input[(position + j - rows) * c];
    std::copy(x, x + c, state.begin() + static_cast<ptrdiff_t>(j * c));
  }
  return state;
}

double RelativeL2(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::quiet_NaN();
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

double RelativeL2(const std::vector<float>& a, const std::vector<double>& b) {
  return RelativeL2(std::vector<double>(a.begin(), a.end()), b);
}

}  // namespace pleiad::oracle
