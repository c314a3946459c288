# Folders whose parsers libFuzzer leads by coverage; elsewhere coverage only costs.
set(VLCACHE_PARSING "io|grammar|api|store|server|server_http|reuse|base")
# Folders that compute nothing for long: quick to compile counts for more than quick to run. The second list is for
# sanitized builds alone.
set(VLCACHE_WAITING "api|server|server_http|cli|analysis")
set(VLCACHE_WAITING_SANITIZED "grammar|store|reuse")

# vlcache_folder(NAME [DEPENDS targets...]): the static library `vlcache_NAME` of the current folder (dashes for slashes),
# plus its unit tests (`*_test.cc` -> vlcache_NAME_test, see VlcacheTests.cmake) and its fuzz targets (`*_fuzz.cc`, which
# are part of the program vlcache_fuzz).
# `EXCLUDE regex...` leaves files out (a sub-folder that is a target of its own). `ALONE`: its files are always compiled one
# by one.
function(vlcache_folder name)
  cmake_parse_arguments(arg "ALONE" "" "DEPENDS;EXCLUDE;TEST_DEPENDS" ${ARGN})
  file(GLOB_RECURSE all CONFIGURE_DEPENDS *.cc)
  foreach(pattern IN LISTS arg_EXCLUDE)
    list(FILTER all EXCLUDE REGEX "${CMAKE_CURRENT_SOURCE_DIR}/${pattern}")
  endforeach()
  set(tests ${all})
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  set(fuzzers ${all})
  list(FILTER fuzzers INCLUDE REGEX "_fuzz\\.cc$")
  set(sources ${all})
  list(FILTER sources EXCLUDE REGEX "_(test|fuzz)\\.cc$")

  if(NOT sources)  # a folder of headers only
    add_library(vlcache_${name} INTERFACE)
    target_link_libraries(vlcache_${name} INTERFACE vlcache_options ${arg_DEPENDS})
    return()
  endif()
  add_library(vlcache_${name} STATIC ${sources})
  target_link_libraries(vlcache_${name} PUBLIC vlcache_options ${arg_DEPENDS})
  if(VLCACHE_UNITY AND NOT arg_ALONE)
    vlcache_batches(vlcache_${name} ${VLCACHE_UNITY_BATCH})
  endif()
  if(VLCACHE_FUZZ AND name MATCHES "^(${VLCACHE_PARSING})$")
    target_compile_options(vlcache_${name} PRIVATE -fsanitize=fuzzer-no-link)
  endif()
  if(VLCACHE_SANITIZE AND name MATCHES "^(${VLCACHE_WAITING}|${VLCACHE_WAITING_SANITIZED})$")
    target_compile_options(vlcache_${name} PRIVATE -O0)
  elseif(name MATCHES "^(${VLCACHE_WAITING})$")
    target_compile_options(vlcache_${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  endif()
  set(alone)
  if(arg_ALONE)
    set(alone ALONE)
  endif()
  vlcache_unit_tests(${name} ${alone} FILES ${tests} DEPENDS ${arg_TEST_DEPENDS})
  if(fuzzers)
    set_property(GLOBAL APPEND PROPERTY VLCACHE_FUZZ_FILES ${fuzzers})
    set_property(GLOBAL APPEND PROPERTY VLCACHE_FUZZ_LIBRARIES vlcache_${name})
  endif()
endfunction()

# Compiles a target's files in batches, each as one: what files include alike is read once. Files with options of their own
# stay alone.
function(vlcache_batches target n_files)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${n_files})
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)  # takes the files of a batch for headers
    # Collect the compiler's garbage from 500 MB on, instead of 128: a tenth of the time of a batch, for 250 MB.
    target_compile_options(${target} PRIVATE --param=ggc-min-heapsize=500000)
  endif()
endfunction()
