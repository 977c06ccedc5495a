# Policies in shared libraries (policy/policy_library.hpp): included by the build of kvtwin, and by find_package(kvtwin).
#
# kvtwin_policy_interface(VARIABLE FOLDER): sets the variable to a hash of the headers of FOLDER that a policy and the
# program must have in common. CMake runs again if one of them changes.
# kvtwin_add_policy(FILE [HEADERS FOLDER]): builds the policy FILE, NAME.cpp as in policy/eviction, as the target NAME,
# the library NAME.so.
set(kvtwin_policy_headers policy/policy_library.hpp policy/eviction.hpp policy/base/parameters.hpp policy/base/tiers.hpp
  policy/base/types.hpp policy/seam/hint.hpp)

function(kvtwin_policy_interface variable folder)
  set(all "")
  foreach(header IN LISTS kvtwin_policy_headers)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${folder}/${header})
    file(SHA256 ${folder}/${header} hash)
    string(APPEND all ${hash})
  endforeach()
  string(SHA256 id ${all})
  string(SUBSTRING ${id} 0 12 id)
  set(${variable} ${id} PARENT_SCOPE)
endfunction()

function(kvtwin_add_policy file)
  cmake_parse_arguments(PARSE_ARGV 1 policy "" "HEADERS" "")
  if(NOT policy_HEADERS)
    set(policy_HEADERS ${kvtwin_POLICY_HEADERS})
  endif()
  get_filename_component(name ${file} NAME_WLE)
  if(NOT name MATCHES "^[a-z0-9_]+$")
    message(FATAL_ERROR "${file}: a policy is called by its file's name, which must be of a-z, 0-9 and _.")
  endif()
  kvtwin_policy_interface(id ${policy_HEADERS})
  set(table ${CMAKE_CURRENT_BINARY_DIR}/${name}_library.cpp)
  file(CONFIGURE OUTPUT ${table} CONTENT
    "#include \"policy/policy_library.hpp\"\nKVTWIN_POLICY_LIBRARY(${name}, \"${id}\")\n" @ONLY)
  # What policies call, apart from templates. A library has its own copy, so it needs nothing of the program.
  set(base ${policy_HEADERS}/policy/base)
  set(base ${base}/check.cpp ${base}/nearest_name.cpp ${base}/parameters.cpp)
  set_source_files_properties(${base} PROPERTIES COMPILE_OPTIONS -w)  # warnings are for the policy's own file
  add_library(${name} MODULE ${file} ${table} ${base})
  target_include_directories(${name} PRIVATE ${policy_HEADERS})
  target_compile_features(${name} PRIVATE cxx_std_20)
  target_compile_options(${name} PRIVATE -ffp-contract=off)
  set_target_properties(${name} PROPERTIES PREFIX "" SUFFIX .so CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON UNITY_BUILD OFF)
endfunction()
