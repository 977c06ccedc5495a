# Installs bin/kvtwin, the libraries for other projects (find_package(kvtwin), then kvtwin::policy, kvtwin::lab, or
# kvtwin::kvtwin for the C interface; these are the component `development`), and the data files under share/kvtwin, in
# the same folders as in the sources.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

if(TARGET kvtwin)
  install(TARGETS kvtwin)
endif()

set_target_properties(kvtwin_policy PROPERTIES EXPORT_NAME policy)
add_library(kvtwin::policy ALIAS kvtwin_policy)
install(TARGETS kvtwin_policy EXPORT kvtwin ARCHIVE COMPONENT development)
install(DIRECTORY policy/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/kvtwin/policy COMPONENT development FILES_MATCHING PATTERN "*.hpp")

# The C interface: libkvtwin.so, as the target kvtwin::kvtwin.
if(TARGET kvtwin_shared)
  set_target_properties(kvtwin_shared PROPERTIES EXPORT_NAME kvtwin)
  install(TARGETS kvtwin_shared EXPORT kvtwin LIBRARY NAMELINK_COMPONENT development
    INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(DIRECTORY include/kvtwin DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)
endif()

# The application library and the libraries that it needs. Its headers use types of impl/ even if impl/ is not built.
set(lab_libraries kvtwin_lab kvtwin_models kvtwin_traces kvtwin_bounds kvtwin_sim)
if(KVTWIN_REAL)
  list(APPEND lab_libraries kvtwin_impl kvtwin_kernels)
endif()
if(KVTWIN_SIMGRID)
  list(APPEND lab_libraries kvtwin_simgrid)
endif()
foreach(library IN LISTS lab_libraries)
  string(REPLACE kvtwin_ "" name ${library})
  set_target_properties(${library} PROPERTIES EXPORT_NAME ${name})
endforeach()
install(TARGETS ${lab_libraries} EXPORT kvtwinLab ARCHIVE COMPONENT development)
foreach(module lab models traces sim impl)
  install(DIRECTORY ${module}/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/kvtwin/${module} COMPONENT development FILES_MATCHING PATTERN "*.hpp")
endforeach()

set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/kvtwin)
install(EXPORT kvtwin NAMESPACE kvtwin:: FILE kvtwinTargets.cmake DESTINATION ${config_dir} COMPONENT development)
install(EXPORT kvtwinLab NAMESPACE kvtwin:: FILE kvtwinLabTargets.cmake DESTINATION ${config_dir}
  COMPONENT development)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/kvtwinConfigVersion.cmake COMPATIBILITY SameMinorVersion)
set(targets TRUE)
set(components "policy, lab and policies")
set(policy_headers ${CMAKE_INSTALL_INCLUDEDIR}/kvtwin)
set(program ${CMAKE_INSTALL_BINDIR}/kvtwin)
configure_package_config_file(cmake/kvtwinConfig.cmake.in kvtwinConfig.cmake INSTALL_DESTINATION ${config_dir}
  PATH_VARS policy_headers program)
install(FILES ${PROJECT_BINARY_DIR}/kvtwinConfig.cmake ${PROJECT_BINARY_DIR}/kvtwinConfigVersion.cmake
  cmake/PolicyLibrary.cmake DESTINATION ${config_dir} COMPONENT development)
# A policy library compiles these files (cmake/PolicyLibrary.cmake).
install(DIRECTORY policy/base DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/kvtwin/policy COMPONENT development
  FILES_MATCHING PATTERN "*.cpp")
# The wheel has the headers of policies, too: what kvtwin_add_policy needs.
if(KVTWIN_PYTHON)
  set(targets FALSE)
  set(components policies)
  set(policy_headers include/kvtwin)
  set(program bin/kvtwin)
  set(in_wheel ${PROJECT_BINARY_DIR}/wheel)
  configure_package_config_file(cmake/kvtwinConfig.cmake.in ${in_wheel}/kvtwinConfig.cmake
    INSTALL_DESTINATION lib/cmake/kvtwin PATH_VARS policy_headers program)
  install(FILES ${in_wheel}/kvtwinConfig.cmake ${PROJECT_BINARY_DIR}/kvtwinConfigVersion.cmake cmake/PolicyLibrary.cmake
    DESTINATION lib/cmake/kvtwin COMPONENT python)
  foreach(folder base eviction seam)
    install(DIRECTORY policy/${folder} DESTINATION include/kvtwin/policy COMPONENT python FILES_MATCHING PATTERN "*.hpp"
      PATTERN "policy/base/*.cpp")
  endforeach()
  install(FILES policy/eviction.hpp policy/policy_library.hpp DESTINATION include/kvtwin/policy COMPONENT python)
  install(DIRECTORY docs/examples/policy DESTINATION examples COMPONENT python)
endif()

set(data_dir ${CMAKE_INSTALL_DATADIR}/kvtwin)
file(GLOB_RECURSE data CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
  experiments/*.toml experiments/*.json models/measured/*.json traces/*.jsonl traces/*.csv traces/*.zst
  notebooks/*.py notebooks/*.ipynb notebooks/requirements.txt notebooks/recorded/*
  python/kvtwin/*.py python/kvtwin/*.jinja
  python/kvtwin/*.json)
foreach(file IN LISTS data)
  get_filename_component(folder ${file} DIRECTORY)
  install(FILES ${file} DESTINATION ${data_dir}/${folder})
endforeach()
install(FILES LICENSE README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
# Without the scripts of the results, which need the source folder.
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} PATTERN docs/results/tools EXCLUDE)
