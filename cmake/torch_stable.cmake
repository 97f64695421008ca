# Target `torch_stable`: the headers of LibTorch's stable ABI and libtorch.so, nothing else.
# find_package(Torch) is not used: a CUDA build of torch would pull in the whole toolkit.

if(NOT GOSSAMER_TORCH_DIR)
  find_package(Python 3.11 COMPONENTS Interpreter REQUIRED)
  # First the build environment, then with -I the environment the package is installed into: pip
  # isolates a build through PYTHONPATH alone, which -I ignores. find_spec does not import torch.
  foreach(flag "-B" "-I")
    execute_process(
      COMMAND "${Python_EXECUTABLE}" ${flag} -c
        "import importlib.util as u, os; s = u.find_spec('torch'); print(os.path.dirname(s.origin) if s else '')"
      OUTPUT_VARIABLE gossamer_found_torch OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    if(gossamer_found_torch)
      break()
    endif()
  endforeach()
  # Not cached: the environment may hold another torch at the next configure.
  set(GOSSAMER_TORCH_DIR "${gossamer_found_torch}")
endif()
# Libraries built with the headers of 2.13 run with torch 2.11 and later; those built with the headers
# of 2.11 crash when a check throws.
set(gossamer_version_file "${GOSSAMER_TORCH_DIR}/include/torch/headeronly/version.h")
set(gossamer_torch_version "none")
if(EXISTS "${gossamer_version_file}")
  file(READ "${gossamer_version_file}" gossamer_version_text)
  string(REGEX MATCH "TORCH_VERSION_MAJOR ([0-9]+)" _ "${gossamer_version_text}")
  set(gossamer_torch_version "${CMAKE_MATCH_1}")
  string(REGEX MATCH "TORCH_VERSION_MINOR ([0-9]+)" _ "${gossamer_version_text}")
  string(APPEND gossamer_torch_version ".${CMAKE_MATCH_1}")
endif()
if(gossamer_torch_version STREQUAL "none" OR gossamer_torch_version VERSION_LESS 2.13)
  message(FATAL_ERROR "Building gossamer needs the headers of torch >= 2.13 (its libraries then run with "
    "torch >= 2.11); found ${gossamer_torch_version} in '${GOSSAMER_TORCH_DIR}'. Install torch first, then "
    "gossamer; with uv, add --no-build-isolation.")
endif()
message(STATUS "gossamer: torch ${gossamer_torch_version} in ${GOSSAMER_TORCH_DIR}")

add_library(torch_stable INTERFACE)
target_include_directories(torch_stable SYSTEM INTERFACE "${GOSSAMER_TORCH_DIR}/include")
target_compile_definitions(torch_stable INTERFACE TORCH_TARGET_VERSION=${GOSSAMER_TORCH_TARGET})
# libtorch.so only forwards to libtorch_cpu.so (and libtorch_cuda.so): --no-as-needed keeps it.
target_link_libraries(torch_stable INTERFACE
  "-Wl,--no-as-needed" "${GOSSAMER_TORCH_DIR}/lib/libtorch.so" "-Wl,--as-needed")
