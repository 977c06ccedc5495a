#include "models/layer_table.hpp"

#include <algorithm>
#include <cstdio>

#include "models/json.hpp"

namespace kvtwin {

namespace {

bool keeps(const LayerRow& row) { return row.bytes_per_token != 0 || row.bytes_per_sequence != 0; }

LayerRow row_of(const ModelGeometry& model, const LayerGeometry& layer) {
  LayerRow row;
  row.kind = layer.shares_rows ? "shared" : name_of(layer.attention);
  row.layers = 1;
  row.bytes_per_sequence = layer.state_bytes;
  if (layer.shares_rows) return row;
  for (const KvRow& kept : layer.rows) {
    if (kept.window == 0 || model.windows_paged) {
      row.bytes_per_token += static_cast<double>(kept.bytes) / kept.tokens;
    } else {
      row.window = kept.window;
      row.window_bytes_per_token += kept.bytes / kept.tokens;
      row.bytes_per_sequence += kept.bytes / kept.tokens * kept.window;
    }
  }
  return row;
}

bool rows_alike(const LayerRow& a, const LayerRow& b) {
  return a.kind == b.kind && a.window == b.window && a.bytes_per_token == b.bytes_per_token &&
         a.window_bytes_per_token == b.window_bytes_per_token && a.bytes_per_sequence == b.bytes_per_sequence;
}

std::string number_text(double number) {
  char text[40];
  std::snprintf(text, sizeof text, number == static_cast<double>(static_cast<std::uint64_t>(number)) ? "%.0f" : "%.2f",
                number);
  return text;
}

}  // namespace

std::vector<LayerRow> layer_table(const ModelGeometry& model) {
  if (model.given.kv_bytes_per_token != 0) {
    return {
        {"given", model.layers.size(), static_cast<double>(model.given.kv_bytes_per_token), 0, 0, model.state_bytes}};
  }
  std::vector<LayerRow> table;
  for (const LayerGeometry& layer : model.layers) {
    const LayerRow one = row_of(model, layer);
    const auto same = std::ranges::find_if(table, [&](const LayerRow& row) { return rows_alike(row, one); });
    if (same == table.end()) {
      table.push_back(one);
      continue;
    }
    ++same->layers;
  }
  for (LayerRow& row : table) {
    row.bytes_per_token *= static_cast<double>(row.layers);
    row.window_bytes_per_token *= row.layers;
    row.bytes_per_sequence *= row.layers;
  }
  if (model.given.state_bytes != 0) {
    for (LayerRow& row : table) {
      if (row.window == 0) row.bytes_per_sequence = 0;
    }
    table.push_back({"given", 0, 0, 0, 0, model.given.state_bytes});
  }
  return table;
}

bool has_several_kinds(const std::vector<LayerRow>& table) { return std::ranges::count_if(table, keeps) > 1; }

Json layer_table_json(const std::vector<LayerRow>& table) {
  Json rows = Json::array();
  for (const LayerRow& row : table) {
    rows.push_back({{"kind", row.kind},
                    {"layers", row.layers},
                    {"bytes_per_token", row.bytes_per_token},
                    {"window_tokens", row.window},
                    {"window_bytes_per_token", row.window_bytes_per_token},
                    {"bytes_per_sequence", row.bytes_per_sequence}});
  }
  return rows;
}

std::string layer_table_text(const std::vector<LayerRow>& table, const std::string& indent) {
  const auto line = [&](const char* kind, const std::string& layers, const std::string& token,
                        const std::string& window, const std::string& sequence) {
    char text[160];
    std::snprintf(text, sizeof text, "%-13s %6s %11s %21s %14s\n", kind, layers.c_str(), token.c_str(), window.c_str(),
                  sequence.c_str());
    return indent + text;
  };
  std::string text = line("kind", "layers", "bytes/token", "in a window", "bytes/sequence");
  for (const LayerRow& row : table) {
    const std::string window =
        row.window == 0 ? "-" : std::to_string(row.window_bytes_per_token) + " x " + std::to_string(row.window);
    text += line(row.kind.c_str(), std::to_string(row.layers), number_text(row.bytes_per_token), window,
                 std::to_string(row.bytes_per_sequence));
  }
  return text;
}

}  // namespace kvtwin
