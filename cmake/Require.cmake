# kvtwin_require(PACKAGE <Debian package> FOR <the use> <how to find it>). The last argument is one of
#   CMAKE <arguments of find_package>    defines the targets of the package
#   PKG_CONFIG <PREFIX> <module>         defines PkgConfig::<PREFIX>
#   PROGRAM <VARIABLE> <name>...         sets the variable
# kvtwin_require() never fails. kvtwin_require_done() fails if packages are missing, and names all of them at once.

define_property(GLOBAL PROPERTY KVTWIN_MISSING_PACKAGES)
define_property(GLOBAL PROPERTY KVTWIN_MISSING_REASONS)

function(kvtwin_missing package reason)
  set_property(GLOBAL APPEND PROPERTY KVTWIN_MISSING_PACKAGES ${package})
  set_property(GLOBAL APPEND_STRING PROPERTY KVTWIN_MISSING_REASONS "\n  ${package}: ${reason}")
endfunction()

find_package(PkgConfig QUIET)
if(NOT PKG_CONFIG_FOUND)
  kvtwin_missing(pkgconf "finding the others")
endif()

function(kvtwin_require)
  cmake_parse_arguments(PARSE_ARGV 0 need "" "PACKAGE;FOR" "CMAKE;PKG_CONFIG;PROGRAM")
  if(need_CMAKE)
    list(GET need_CMAKE 0 name)
    find_package(${need_CMAKE} QUIET)
    set(found ${${name}_FOUND})
  elseif(need_PKG_CONFIG)
    list(GET need_PKG_CONFIG 0 prefix)
    list(GET need_PKG_CONFIG 1 module)
    set(found FALSE)
    if(PKG_CONFIG_FOUND)
      pkg_check_modules(${prefix} QUIET IMPORTED_TARGET ${module})
      set(found ${${prefix}_FOUND})
    endif()
  else()
    list(POP_FRONT need_PROGRAM variable)
    find_program(${variable} NAMES ${need_PROGRAM} PATHS /usr/bin NO_DEFAULT_PATH)
    find_program(${variable} NAMES ${need_PROGRAM})
    set(found ${${variable}})
  endif()
  if(NOT found)
    kvtwin_missing(${need_PACKAGE} "${need_FOR}")
  endif()
endfunction()

function(kvtwin_require_done)
  get_property(packages GLOBAL PROPERTY KVTWIN_MISSING_PACKAGES)
  get_property(reasons GLOBAL PROPERTY KVTWIN_MISSING_REASONS)
  if(packages)
    list(REMOVE_DUPLICATES packages)
    list(JOIN packages " " line)
    message(FATAL_ERROR "Missing, by the names of their Debian packages:${reasons}\nInstall them with:\n  apt-get install ${line}")
  endif()
endfunction()
