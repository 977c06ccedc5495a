# Installs the build into an empty prefix, and builds and runs consumer/ with nothing but this prefix.
set(work ${BUILD}/tests/install/work)
file(REMOVE_RECURSE ${work})
function(run)
  execute_process(COMMAND ${ARGV} OUTPUT_VARIABLE text ERROR_VARIABLE text RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    list(JOIN ARGV " " line)
    message(FATAL_ERROR "${line}: ${status}\n${text}")
  endif()
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${work}/prefix)
foreach(file share/doc/kvtwin/LICENSE share/doc/kvtwin/README.md share/kvtwin/python/kvtwin/figures.py
    share/bash-completion/completions/kvtwin)
  if(NOT EXISTS ${work}/prefix/${file})
    message(FATAL_ERROR "not installed: ${file}")
  endif()
endforeach()
# Includes every installed header, to check that none needs a file that isn't installed.
file(GLOB headers RELATIVE ${work}/prefix/include/kvtwin ${work}/prefix/include/kvtwin/policy/*.hpp)
list(TRANSFORM headers REPLACE ".+" "#include \"\\0\"\n")
list(JOIN headers "" text)
file(WRITE ${work}/all_headers.hpp ${text})
file(GLOB_RECURSE headers RELATIVE ${work}/prefix/include/kvtwin ${work}/prefix/include/kvtwin/lab/*.hpp)
list(TRANSFORM headers REPLACE ".+" "#include \"\\0\"\n")
list(JOIN headers "" text)
file(WRITE ${work}/all_lab_headers.hpp ${text})
run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/consumer -B ${work}/build -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${CXX}
  -DCMAKE_PREFIX_PATH=${work}/prefix -DALL_HEADERS=${work}
  -DEXAMPLES=${CMAKE_CURRENT_LIST_DIR}/../../docs/examples)
run(${CMAKE_COMMAND} --build ${work}/build)
run(${work}/build/consumer)
run(${work}/build/simulation ${work}/prefix/share/kvtwin/experiments/quickstart.toml)
if(EXISTS ${work}/build/host)
  run(${work}/build/host ${work}/store)
  run(${work}/build/pools ${work}/pools-store)
endif()

# The example of docs/policies.md: a policy in a project of its own, built and tested by two commands.
file(COPY ${CMAKE_CURRENT_LIST_DIR}/../../docs/examples/policy DESTINATION ${work})
run(${CMAKE_COMMAND} -S ${work}/policy -B ${work}/policy/build -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${CXX}
  -DCMAKE_PREFIX_PATH=${work}/prefix)
run(${CMAKE_COMMAND} --build ${work}/policy/build --target check)

# The example of docs/storage.md: a store library in a project of its own, as the remote tier of a run.
file(COPY ${CMAKE_CURRENT_LIST_DIR}/../../docs/examples/store DESTINATION ${work})
run(${CMAKE_COMMAND} -S ${work}/store -B ${work}/store/build -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${CXX}
  -DCMAKE_PREFIX_PATH=${work}/prefix)
run(${CMAKE_COMMAND} --build ${work}/store/build)
if(EXISTS ${work}/build/host)
  foreach(turn first second)
    run(${work}/prefix/bin/kvtwin run ${work}/prefix/share/kvtwin/experiments/quickstart.toml --device host
      --set workload.limit=20 --set tiers.disk.gib=0 --set tiers.remote.tokens=65536
      --set tiers.remote.url=library:${work}/store/build/files_store.so?${work}/values --out ${work}/${turn})
  endforeach()
  file(READ ${work}/second/report.json report)
  string(JSON found GET ${report} tokens hit_remote)
  if(NOT found GREATER 0)
    message(FATAL_ERROR "the second run finds nothing in the store library: ${found} tokens")
  endif()
endif()

# Checks that the installed program is hardened and has no library path that includes the current folder.
run(${PYTHON} -B ${CMAKE_CURRENT_LIST_DIR}/../rules/check_program.py ${work}/prefix/bin/kvtwin)
run(${work}/prefix/bin/kvtwin --version)

# The installed program finds the experiments and the trace that are installed with it, from any folder.
file(MAKE_DIRECTORY ${work}/empty)
execute_process(COMMAND ${work}/prefix/bin/kvtwin check experiments/quickstart.toml traces/chat_small.jsonl.zst
  WORKING_DIRECTORY ${work}/empty COMMAND_ERROR_IS_FATAL ANY OUTPUT_QUIET)
foreach(words "simulate;experiments/quickstart.toml" "hitrate;--limit;100;--capacity;100;--trace;traces/chat_small.jsonl.zst")
  execute_process(COMMAND ${work}/prefix/bin/kvtwin ${words} WORKING_DIRECTORY ${work}/empty COMMAND_ERROR_IS_FATAL ANY
    OUTPUT_QUIET)
endforeach()

# The installed program draws with the installed package, not with the one in the source folder.
file(WRITE ${work}/python "#!/bin/sh\necho \"$PYTHONPATH: $*\" >${work}/drawn\n")
file(CHMOD ${work}/python PERMISSIONS OWNER_READ OWNER_EXECUTE)
file(WRITE ${work}/run/report.json "{}")
run(${CMAKE_COMMAND} -E env KVTWIN_PYTHON=${work}/python PYTHONPATH= ${work}/prefix/bin/kvtwin figures ${work}/run)
file(READ ${work}/drawn drawn)
if(NOT drawn STREQUAL "${work}/prefix/share/kvtwin/python: -P -m kvtwin.run_module figures figures ${work}/run\n")
  message(FATAL_ERROR "kvtwin figures ran: ${drawn}")
endif()
