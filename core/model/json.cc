#include "core/model/json.h"

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace pleiad {
namespace {

using nlohmann::json;

constexpr size_t kMaxDepth = 32;
constexpr size_t kMaxValues = 8000000;
constexpr size_t kMaxShown = 100;

// Builds the document; every handler returns false to stop the parser, with the reason in error_.
class BoundedBuilder : public nlohmann::json_sax<json> {
 public:
  bool null() override { return Put(json(nullptr)); }
  bool boolean(bool value) override { return Put(json(value)); }
  bool number_integer(number_integer_t value) override { return Put(json(value)); }
  bool number_unsigned(number_unsigned_t value) override { return Put(json(value)); }
  bool number_float(number_float_t value, const string_t&) override { return Put(json(value)); }
  bool string(string_t& value) override { return Put(json(std::move(value))); }
  bool binary(binary_t&) override { return Refuse("binary values are not JSON"); }
  bool start_object(size_t) override { return Open(json::object()); }
  bool start_array(size_t) override { return Open(json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(string_t& name) override {
    auto [it, inserted] = open_.back()->emplace(name, nullptr);
    if (!inserted) return Refuse(absl::StrCat("key ", ShowJson(name), " is given twice in one object"));
    slot_ = &it.value();
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return Refuse(absl::StrCat("not JSON at byte ", position));
  }

  const std::string& error() const { return error_; }
  json TakeRoot() { return std::move(root_); }

 private:
  bool Refuse(std::string why) {
    error_ = std::move(why);
    return false;
  }

  // Where the next value belongs, or null once a bound is passed.
  json* Place(json value) {
    if (++values_ > kMaxValues) {
      Refuse(absl::StrCat("more than ", kMaxValues, " values"));
      return nullptr;
    }
    json* place = &root_;
    if (!open_.empty()) {
      if (open_.back()->is_array()) {
        open_.back()->push_back(std::move(value));
        return &open_.back()->back();
      }
      place = slot_;
    }
    *place = std::move(value);
    return place;
  }

  bool Put(json value) { return Place(std::move(value)) != nullptr; }

  bool Open(json container) {
    if (open_.size() == kMaxDepth) return Refuse(absl::StrCat("nested deeper than ", kMaxDepth));
    json* place = Place(std::move(container));
    if (place == nullptr) return false;
    open_.push_back(place);
    return true;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  json root_;
  std::vector<json*> open_;  // containers being filled, outermost first
  json* slot_ = nullptr;     // value of the key read last
  size_t values_ = 0;
  std::string error_;
};

}  // namespace

absl::StatusOr<json> ParseJson(absl::string_view text, absl::string_view source) {
  BoundedBuilder builder;
  if (!json::sax_parse(text.begin(), text.end(), &builder)) {
    return absl::InvalidArgumentError(absl::StrCat(source, ": ", builder.error()));
  }
  return builder.TakeRoot();
}

std::string ShowJson(const json& value) {
  std::string shown = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (shown.size() > kMaxShown) {
    shown.resize(kMaxShown);
    shown += "...";
  }
  return shown;
}

}  // namespace pleiad
