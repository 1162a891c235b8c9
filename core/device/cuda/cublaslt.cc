#include "core/device/cuda/cublaslt.h"

#include <dlfcn.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace pleiad::cuda {
namespace {

absl::StatusOr<const CublasLt*> Load() {
  // The name alone first: what the system or LD_LIBRARY_PATH offers; then the toolkit this was built with.
  const std::string name = absl::StrCat("libcublasLt.so.", CUBLAS_VER_MAJOR);
  void* library = nullptr;
  std::string error;
  for (const std::string& path : {name, absl::StrCat(PLEIAD_CUDA_LIBRARY_DIR "/", name)}) {
    library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
    absl::StrAppend(&error, error.empty() ? "" : "; ", ::dlerror());
  }
  if (library == nullptr) return absl::NotFoundError(absl::StrCat("cuBLASLt cannot be loaded: ", error));
  static CublasLt api;
  std::string missing;
  const auto find = [&](auto& function, const char* symbol) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, symbol));
    if (function == nullptr) absl::StrAppend(&missing, missing.empty() ? "" : ", ", symbol);
  };
  find(api.create, "cublasLtCreate");
  find(api.destroy, "cublasLtDestroy");
  find(api.version, "cublasLtGetVersion");
  find(api.desc_create, "cublasLtMatmulDescCreate");
  find(api.desc_destroy, "cublasLtMatmulDescDestroy");
  find(api.desc_set, "cublasLtMatmulDescSetAttribute");
  find(api.layout_create, "cublasLtMatrixLayoutCreate");
  find(api.layout_destroy, "cublasLtMatrixLayoutDestroy");
  find(api.layout_set, "cublasLtMatrixLayoutSetAttribute");
  find(api.preference_create, "cublasLtMatmulPreferenceCreate");
  find(api.preference_destroy, "cublasLtMatmulPreferenceDestroy");
  find(api.preference_set, "cublasLtMatmulPreferenceSetAttribute");
  find(api.heuristic, "cublasLtMatmulAlgoGetHeuristic");
  find(api.algo_get, "cublasLtMatmulAlgoConfigGetAttribute");
  find(api.matmul, "cublasLtMatmul");
  if (!missing.empty()) return absl::NotFoundError(absl::StrCat(name, " lacks ", missing));
  return &api;
}

}  // namespace

absl::StatusOr<const CublasLt*> LoadCublasLt() {
  static const absl::StatusOr<const CublasLt*> api = Load();
  return api;
}

absl::Status ToStatus(cublasStatus_t status, absl::string_view call) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(call, ": cuBLASLt status ", static_cast<int>(status)));
}

}  // namespace pleiad::cuda
