# Installs the build into a fresh prefix, and builds and runs consumer/ against that prefix alone.
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
foreach(file share/doc/kvtwin/LICENSE share/doc/kvtwin/README.md share/kvtwin/notebooks/kvtwin.py)
  if(NOT EXISTS ${work}/prefix/${file})
    message(FATAL_ERROR "not installed: ${file}")
  endif()
endforeach()
# Every installed header, so that none needs what stays behind.
file(GLOB headers RELATIVE ${work}/prefix/include/kvtwin ${work}/prefix/include/kvtwin/policy/*.hpp)
list(TRANSFORM headers REPLACE ".+" "#include \"\\0\"\n")
list(JOIN headers "" text)
file(WRITE ${work}/all_headers.hpp ${text})
run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/consumer -B ${work}/build -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${CXX}
  -DCMAKE_PREFIX_PATH=${work}/prefix -DALL_HEADERS=${work})
run(${CMAKE_COMMAND} --build ${work}/build)
run(${work}/build/consumer)

# The installed program: hardened, and without a library path that leads to the current folder.
run(${PYTHON} -B ${CMAKE_CURRENT_LIST_DIR}/../rules/check_program.py ${work}/prefix/bin/kvtwin)
run(${work}/prefix/bin/kvtwin --version)
