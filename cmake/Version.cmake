# The target kvtwin_version writes ${KVTWIN_VERSION_SOURCE}, the source file with the definitions of lab/version.hpp.
# This file is also the script (cmake -P) that the target runs. The script calls git, and writes the file if it changed.
if(CMAKE_SCRIPT_MODE_FILE)
  set(KVTWIN_GIT_COMMIT unknown)
  execute_process(COMMAND git -C ${KVTWIN_SOURCE_DIR} rev-parse --show-toplevel
    OUTPUT_VARIABLE top OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed)
    file(REAL_PATH ${KVTWIN_SOURCE_DIR} source)
    file(REAL_PATH ${top} top)
    if(top STREQUAL source)  # otherwise the sources are a plain copy inside another repository
      execute_process(COMMAND git -C ${KVTWIN_SOURCE_DIR} describe --always --dirty --abbrev=40 --exclude=*
        OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
      if(NOT failed)
        set(KVTWIN_GIT_COMMIT ${commit})
      endif()
    endif()
  endif()
  if(KVTWIN_PACKAGED)
    # Where the package was built, another user of the machine that installs it may have a folder with a program.
    set(KVTWIN_SOURCE_DIR "")
  endif()
  configure_file(${CMAKE_CURRENT_LIST_DIR}/version.cpp.in ${KVTWIN_VERSION_SOURCE} @ONLY)
  return()
endif()

set(KVTWIN_VERSION_SOURCE ${PROJECT_BINARY_DIR}/generated/version.cpp)
add_custom_target(kvtwin_version
  COMMAND ${CMAKE_COMMAND} -DKVTWIN_SOURCE_DIR=${PROJECT_SOURCE_DIR} -DKVTWIN_VERSION_SOURCE=${KVTWIN_VERSION_SOURCE}
          -DKVTWIN_VERSION=${PROJECT_VERSION} -DKVTWIN_PACKAGED=$<BOOL:${KVTWIN_SIMGRID_PREFIX}> -P ${CMAKE_CURRENT_LIST_FILE}
  BYPRODUCTS ${KVTWIN_VERSION_SOURCE}
  COMMENT "Asking git for the commit")
