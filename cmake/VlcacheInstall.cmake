# `cmake --install BUILD --prefix P --component program` (`make install`) installs the program, its helper, man page,
# completions, systemd unit and an example of the unit's flags. Nothing is compiled for it.
include(GNUInstallDirs)

install(TARGETS vlcache RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
# io/video/video.cc finds it there, from the folder of the program.
cmake_path(SET helper_folder NORMALIZE ${CMAKE_INSTALL_BINDIR}/../libexec/vlcache)
install(TARGETS vlcache_video RUNTIME DESTINATION ${helper_folder} COMPONENT program)
install(FILES ${CMAKE_SOURCE_DIR}/deploy/server.toml DESTINATION ${CMAKE_INSTALL_DATADIR}/vlcache COMPONENT program)

# Texts that depend on the prefix, or that the program prints: written in their places, since a build folder may belong to
# another user than the one that installs.
install(CODE [[
  function(vlcache_install_text path text)
    cmake_path(ABSOLUTE_PATH path BASE_DIRECTORY "${CMAKE_INSTALL_PREFIX}" OUTPUT_VARIABLE to)
    message(STATUS "Installing: $ENV{DESTDIR}${to}")
    file(WRITE "$ENV{DESTDIR}${to}" "${text}")
    file(CHMOD "$ENV{DESTDIR}${to}" PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
    list(APPEND CMAKE_INSTALL_MANIFEST_FILES "${to}")
    set(CMAKE_INSTALL_MANIFEST_FILES "${CMAKE_INSTALL_MANIFEST_FILES}" PARENT_SCOPE)
  endfunction()
]] COMPONENT program)
install(CODE "
  file(READ \"${CMAKE_SOURCE_DIR}/deploy/vlcache.service\" unit)
  string(REPLACE /usr/local/bin/ \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}/\" unit \"\${unit}\")
  string(REPLACE /usr/local/share/ \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}/\" unit \"\${unit}\")
  vlcache_install_text(lib/systemd/system/vlcache.service \"\${unit}\")
" COMPONENT program)
if(CMAKE_CROSSCOMPILING AND NOT CMAKE_CROSSCOMPILING_EMULATOR)
  message(STATUS "Cross-compiling: neither man page nor completions are installed, which the program prints")
  return()
endif()
foreach(text man=${CMAKE_INSTALL_MANDIR}/man1/vlcache.1
             bash=${CMAKE_INSTALL_DATADIR}/bash-completion/completions/vlcache
             zsh=${CMAKE_INSTALL_DATADIR}/zsh/site-functions/_vlcache
             fish=${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d/vlcache.fish)
  string(REGEX MATCH "^([^=]+)=(.+)$" matched ${text})
  install(CODE "
    execute_process(COMMAND ${CMAKE_CROSSCOMPILING_EMULATOR} \"$<TARGET_FILE:vlcache>\" completions ${CMAKE_MATCH_1}
                    OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
    vlcache_install_text(${CMAKE_MATCH_2} \"\${text}\")
  " COMPONENT program)
endforeach()
