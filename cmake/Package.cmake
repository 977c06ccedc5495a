# Packages: cpack makes the Debian packages kvtwin (component `program`) and kvtwin-dev (component `development`).
# tools/package calls cpack. With KVTWIN_SIMGRID_PREFIX, SimGrid's library and its notice are beside the program, as in a wheel.
if(KVTWIN_SIMGRID_PREFIX)
  if(KVTWIN_PYTHON)  # the program is in bin/ of the package
    set(component python)
    set(simgrid_dir lib)
    set(notice_dir lib)
  else()
    set(component program)
    set(simgrid_dir ${CMAKE_INSTALL_LIBDIR}/kvtwin)
    set(notice_dir ${CMAKE_INSTALL_DOCDIR}/simgrid)
  endif()
  install(FILES ${KVTWIN_SIMGRID_FILE} DESTINATION ${simgrid_dir} COMPONENT ${component})
  install(DIRECTORY ${KVTWIN_SIMGRID_PREFIX}/notice/ DESTINATION ${notice_dir} COMPONENT ${component})
  set_target_properties(kvtwin PROPERTIES INSTALL_RPATH "$ORIGIN/../${simgrid_dir}")
endif()
if(KVTWIN_PYTHON)
  return()
endif()

# Completions of the shells, printed by the program.
if(TARGET kvtwin)
  set(completions ${PROJECT_BINARY_DIR}/completions)
  install(CODE "
    file(MAKE_DIRECTORY ${completions})
    foreach(shell bash zsh fish)
      execute_process(COMMAND ${CMAKE_COMMAND} -E env LD_LIBRARY_PATH=${KVTWIN_SIMGRID_PREFIX}/lib
        ${PROJECT_BINARY_DIR}/kvtwin completion \${shell} OUTPUT_FILE ${completions}/\${shell} COMMAND_ERROR_IS_FATAL ANY)
    endforeach()")
  install(FILES ${completions}/bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME kvtwin)
  install(FILES ${completions}/zsh DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions RENAME _kvtwin)
  install(FILES ${completions}/fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d RENAME kvtwin.fish)
endif()

# What Debian's policy asks of each package: the copyright and the log of changes.
set(KVTWIN_MAINTAINER "kvtwin maintainers <maintainers@localhost>" CACHE STRING "Maintainer of the packages: Name <mail>")
string(TIMESTAMP KVTWIN_PACKAGE_DATE "%a, %d %b %Y %H:%M:%S +0000" UTC)
configure_file(cmake/package/changelog.in changelog @ONLY)
find_program(KVTWIN_GZIP gzip)
if(KVTWIN_GZIP)
  execute_process(COMMAND ${KVTWIN_GZIP} -9nf changelog WORKING_DIRECTORY ${PROJECT_BINARY_DIR})
endif()
foreach(package kvtwin kvtwin-dev)
  set(component program)
  if(package STREQUAL kvtwin-dev)
    set(component development)
  endif()
  install(FILES cmake/package/copyright DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${package} COMPONENT ${component})
  install(FILES ${PROJECT_BINARY_DIR}/changelog.gz DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${package}
    RENAME changelog.Debian.gz COMPONENT ${component} OPTIONAL)
endforeach()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME kvtwin)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT ${KVTWIN_MAINTAINER})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_COMPONENTS_ALL program development)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME kvtwin)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${KVTWIN_SIMGRID_PREFIX}/lib)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SUGGESTS "openmpi-bin, python3-venv")
set(CPACK_DEBIAN_PROGRAM_DESCRIPTION "hierarchical KV caches for LLM serving, simulated or real
 kvtwin answers which GPUs, host memory, drives and settings an LLM service needs,
 and what they cost, from its traffic, model and prices. It simulates the KV cache
 of SGLang and vLLM on device, host, disk and remote memory.
 .
 The package contains the program and libkvtwin.so, the C interface.")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME kvtwin-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(development_packages "kvtwin (= ${PROJECT_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE})" pkgconf libssl-dev libxxhash-dev
  zlib1g-dev libsimdjson-dev libzstd-dev libtomlplusplus-dev liblemon-dev)
foreach(part ZMQ:libzmq3-dev URING:liburing-dev HIREDIS:libhiredis-dev MPI:libopenmpi-dev)
  string(REPLACE ":" ";" part ${part})
  list(GET part 0 name)
  list(GET part 1 package)
  if(TARGET PkgConfig::${name})
    list(APPEND development_packages ${package})
  endif()
endforeach()
list(JOIN development_packages ", " CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS)
set(CPACK_DEBIAN_DEVELOPMENT_DESCRIPTION "hierarchical KV caches for LLM serving: libraries and headers
 The CMake package kvtwin: kvtwin::policy has the policies, kvtwin::lab the
 simulations, and kvtwin::kvtwin the C interface.")
include(CPack)
