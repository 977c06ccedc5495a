# kvtwin_version: a header that only lab/ and cli/ may use, #include "kvtwin_version.hpp". A new commit changes the
# header, so whoever includes it is compiled again: one small .cpp, please.
# This file is also the script (cmake -P) that the target runs: it asks git and writes the header if it changed.
if(CMAKE_SCRIPT_MODE_FILE)
  set(KVTWIN_GIT_COMMIT unknown)
  execute_process(COMMAND git -C ${KVTWIN_SOURCE_DIR} rev-parse --show-toplevel
    OUTPUT_VARIABLE top OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed)
    file(REAL_PATH ${KVTWIN_SOURCE_DIR} source)
    file(REAL_PATH ${top} top)
    if(top STREQUAL source)  # else we're a plain copy inside somebody else's repository
      execute_process(COMMAND git -C ${KVTWIN_SOURCE_DIR} describe --always --dirty --abbrev=40 --exclude=*
        OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
      if(NOT failed)
        set(KVTWIN_GIT_COMMIT ${commit})
      endif()
    endif()
  endif()
  configure_file(${CMAKE_CURRENT_LIST_DIR}/kvtwin_version.hpp.in ${KVTWIN_HEADER} @ONLY)
  return()
endif()

set(KVTWIN_HEADER ${PROJECT_BINARY_DIR}/generated/kvtwin_version.hpp)
add_custom_target(kvtwin_version_header
  COMMAND ${CMAKE_COMMAND} -DKVTWIN_SOURCE_DIR=${PROJECT_SOURCE_DIR} -DKVTWIN_HEADER=${KVTWIN_HEADER}
          -DKVTWIN_VERSION=${PROJECT_VERSION} -P ${CMAKE_CURRENT_LIST_DIR}/Version.cmake
  BYPRODUCTS ${KVTWIN_HEADER}
  COMMENT "Asking git for the commit")
add_library(kvtwin_version INTERFACE)
add_dependencies(kvtwin_version kvtwin_version_header)
target_include_directories(kvtwin_version INTERFACE ${PROJECT_BINARY_DIR}/generated)
