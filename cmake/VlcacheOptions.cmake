# Language level, warnings, sanitizers: everything that every target shares.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

# -O2 compiles in half the time of -O3; src/ops, where loops are hot, asks for -O3 itself.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
# Sanitized programs are built to be run once: a quick build counts for more than quick code.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1")

add_library(vlcache_options INTERFACE)
target_include_directories(vlcache_options INTERFACE ${CMAKE_SOURCE_DIR}/src)
target_compile_options(vlcache_options INTERFACE -Wall -Wextra -Wpedantic -Werror -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # GCC 12 warns of overlapping copies inside its own std::string (GCC bug 105651).
  target_compile_options(vlcache_options INTERFACE -Wno-restrict)
endif()
# No fused multiply-add after our back: results must not depend on the compiler's choice.
target_compile_options(vlcache_options INTERFACE -ffp-contract=off)

if(VLCACHE_SANITIZE)
  # The checks left out double the time to compile and find only what AddressSanitizer stops at anyway (null, object-size),
  # or casts that this code does not have (vptr); those of alignment, pointer overflow and function types are as costly and
  # stay in `make soak` (VLCACHE_SANITIZE_ALL). Bounds of spans and vectors are checked in exchange.
  set(unchecked null,object-size,vptr)
  if(NOT VLCACHE_SANITIZE_ALL)
    string(APPEND unchecked ,alignment,pointer-overflow)
    if(CMAKE_CXX_COMPILER_ID STREQUAL Clang)
      string(APPEND unchecked ,function)
    endif()
  endif()
  # A target with the property VLCACHE_ADDRESS_ALONE is built with AddressSanitizer and without UBSan.
  string(REPLACE "," "$<COMMA>" sanitizers "${VLCACHE_SANITIZE}")
  string(REPLACE ",undefined" "" address_alone "${VLCACHE_SANITIZE}")
  target_compile_options(vlcache_options INTERFACE
    $<IF:$<BOOL:$<TARGET_PROPERTY:VLCACHE_ADDRESS_ALONE>>,-fsanitize=${address_alone},-fsanitize=${sanitizers}>
    -fno-sanitize=${unchecked} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    target_compile_options(vlcache_options INTERFACE -Wno-maybe-uninitialized)  # false alarms in instrumented code
  endif()
  target_compile_definitions(vlcache_options INTERFACE _GLIBCXX_ASSERTIONS)
  target_link_options(vlcache_options INTERFACE -fsanitize=${VLCACHE_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL Clang)  # in a fifth of ld's time
    target_link_options(vlcache_options INTERFACE -fuse-ld=lld)
  endif()
endif()
if(VLCACHE_REF_ONLY)
  target_compile_definitions(vlcache_options INTERFACE VLCACHE_REF_ONLY)
endif()
