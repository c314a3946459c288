# Which unit tests a build has, and how ctest runs them.
#   VLCACHE_TESTS  ON       all of them
#                  kernels  those of modules whose arithmetic depends on the machine's instruction set, or that the builds
#                           with ops/ref alone leave out
#                  threads  those of what threads share in base, store and server/http: what `make test` runs under TSan
#                  all-threads  these and those of the server and of the engine beside tiers: `make tsan`
#                  OFF      none
set(kernel_tests
  "/ops/" "/tests/" "base/numeric/kv_codec_test" "policy/attention_fit/" "cache/sweep_allocations_test" "store/disk/syscalls_test"
  "/model/(model|text_decoder|rope)_test" "/model/weights/"
  "/engine/(every_.*|policy|decode_allocations|shared_attention)_test" "/engine/hooks/" "/engine/reuse/(loaded_image_source|kept_images)_test"
  "/engine/sequence/(steps|streaming|row_dropping|window_recompute)_test" "/engine/scheduler/(encoding|scheduler|image_selection)_test")
set(thread_tests "base/os/threads_test" "/store/" "/server/http/")
set(all_thread_tests ${thread_tests} "/server/" "engine/(reuse/(slow_tiers|stored_images)|scheduler/accounting)_test")
string(REPLACE ";" "|" VLCACHE_TESTS_kernels "${kernel_tests}")
string(REPLACE ";" "|" VLCACHE_TESTS_threads "${thread_tests}")
string(REPLACE ";" "|" VLCACHE_TESTS_all-threads "${all_thread_tests}")

# Programs that run long are cut into so many parts, which ctest runs beside each other, these first.
set(VLCACHE_PARTS_engine 6)
set(VLCACHE_PARTS_server 2)
set(VLCACHE_PARTS_store 2)
set(VLCACHE_PARTS_golden 2)
set(VLCACHE_PARTS_pipeline 2)
set(VLCACHE_PARTS_ops 2)
set(VLCACHE_PARTS_io 2)

# What tools/check.sh leaves to tools/test.sh: servers and files that must wait, and the same once more.
set(VLCACHE_SLOW_TESTS "^(store|golden-avx2)")

# Programs that wait more than they compute; ctest counts the others as two.
set(VLCACHE_WAITING_TESTS "base|io|store|grammar|reuse|api|server|server_http|cli")

# All test programs of a build, and nothing that no test runs: what sanitizers are built for.
add_custom_target(vlcache_tests)

# vlcache_unit_tests(NAME [ALONE] FILES files... [DEPENDS targets...]): the program vlcache_NAME_test of those of the files that
# this build has, and its ctest tests NAME or NAME-1, NAME-2, ... Each writes what ran to build/.../results/NAME.xml and
# has a folder of its own for temporary files.
function(vlcache_unit_tests name)
  cmake_parse_arguments(arg "ALONE" "" "FILES;DEPENDS" ${ARGN})
  if(DEFINED VLCACHE_TESTS_${VLCACHE_TESTS})
    list(FILTER arg_FILES INCLUDE REGEX "${VLCACHE_TESTS_${VLCACHE_TESTS}}")
  elseif(NOT VLCACHE_TESTS)
    return()
  endif()
  if(NOT arg_FILES)
    return()
  endif()
  set_property(GLOBAL APPEND PROPERTY VLCACHE_TEST_FILES ${arg_FILES})
  set(program vlcache_${name}_test)
  add_executable(${program} ${arg_FILES})
  add_dependencies(vlcache_tests ${program})
  if(TARGET vlcache_${name})
    target_link_libraries(${program} PRIVATE vlcache_${name})
  endif()
  target_link_libraries(${program} PRIVATE ${arg_DEPENDS} GTest::gtest_main GTest::gmock)
  target_sources(${program} PRIVATE $<TARGET_OBJECTS:vlcache_cpu_seconds>)
  if(NOT VLCACHE_REF_ONLY)
    target_sources(${program} PRIVATE $<TARGET_OBJECTS:vlcache_instruction_set_limit>)
    target_link_libraries(${program} PRIVATE vlcache_ops_cpu)
  endif()
  target_compile_definitions(${program} PRIVATE VLCACHE_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  target_include_directories(${program} PRIVATE ${CMAKE_SOURCE_DIR})
  target_compile_options(${program} PRIVATE $<$<CONFIG:Release>:-O1>)  # a quarter less to compile
  target_compile_options(${program} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O0>)  # half of the time to compile
  if(NOT arg_ALONE)
    vlcache_batches(${program} ${VLCACHE_TEST_BATCH})
  endif()
  vlcache_run_tests(${name} ${program})
endfunction()

# vlcache_run_tests(NAME PROGRAM [VARIABLE=value...])
function(vlcache_run_tests name program)
  set(n_parts 1)
  if(DEFINED VLCACHE_PARTS_${name})
    set(n_parts ${VLCACHE_PARTS_${name}})
  endif()
  foreach(part RANGE 1 ${n_parts})
    set(test ${name})
    if(n_parts GREATER 1)
      set(test ${name}-${part})
    endif()
    math(EXPR index "${part} - 1")
    set(folder ${CMAKE_BINARY_DIR}/temporary/${test}/)
    file(MAKE_DIRECTORY ${folder})
    add_test(NAME ${test} COMMAND ${program} --gtest_brief=1 --gtest_output=xml:${CMAKE_BINARY_DIR}/results/${test}.xml)
    if(NOT name MATCHES "${VLCACHE_SLOW_TESTS}")
      set_tests_properties(${test} PROPERTIES LABELS quick)
    endif()
    if(NOT name MATCHES "^(${VLCACHE_WAITING_TESTS})$")
      set_tests_properties(${test} PROPERTIES PROCESSORS 2)
    endif()
    set_tests_properties(${test} PROPERTIES TIMEOUT 1500 COST ${n_parts} ENVIRONMENT
      "GTEST_TOTAL_SHARDS=${n_parts};GTEST_SHARD_INDEX=${index};TMPDIR=${folder};TEST_TMPDIR=${folder};${ARGN}")
  endforeach()
endfunction()
