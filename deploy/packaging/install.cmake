# install.cmake - installs the files whose place or content depends on the prefix. `cmake --install`
# runs it last. The caller sets BINDIR, DATADIR, TARN_UNIT_DEVICES, MADE and SOURCE.
#
# With the prefix /usr the configuration goes to /etc, as Debian demands; with any other prefix it
# goes below the prefix. An existing tarn.conf or tarn.env is never overwritten.
set(prefix "${CMAKE_INSTALL_PREFIX}")
set(root "$ENV{DESTDIR}")
if(prefix STREQUAL "/usr")
  set(sysconfdir /etc)
  set(zsh_dir /usr/share/zsh/vendor-completions)
else()
  set(sysconfdir ${prefix}/etc)
  set(zsh_dir ${prefix}/${DATADIR}/zsh/site-functions)
endif()
set(bindir ${prefix}/${BINDIR})
set(TARN_SERVER ${bindir}/tarn-server)
set(TARN_CONF ${sysconfdir}/tarn/tarn.conf)
set(TARN_ENV ${sysconfdir}/tarn/tarn.env)

file(GLOB functions ${MADE}/_tarn*)
file(INSTALL ${functions} DESTINATION ${zsh_dir})

# Further arguments are passed to file(INSTALL). This is a macro, because file() adds the file to
# the manifest variable of the caller's scope.
macro(install_once from to)
  if(EXISTS ${root}${to})
    message(STATUS "Kept: ${root}${to}")
  else()
    get_filename_component(dir ${to} DIRECTORY)
    file(INSTALL ${from} DESTINATION ${dir} ${ARGN})
  endif()
endmacro()
install_once(${MADE}/tarn.conf ${TARN_CONF})
install_once(${SOURCE}/systemd/tarn.env ${TARN_ENV} PERMISSIONS OWNER_READ OWNER_WRITE)

# Configured at its destination and not in the build folder, because two installations may run at
# the same time.
set(unit ${prefix}/lib/systemd/system/tarn.service)
message(STATUS "Installing: ${root}${unit}")
configure_file(${SOURCE}/systemd/tarn.service.in ${root}${unit} @ONLY)
list(APPEND CMAKE_INSTALL_MANIFEST_FILES ${unit})
file(INSTALL ${SOURCE}/systemd/tarn.sysusers RENAME tarn.conf DESTINATION ${prefix}/lib/sysusers.d)
