package stack

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// copyDependencies is the goal that puts a project's dependencies into a folder.
const copyDependencies = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"

// Jars fetches Maven artefacts, each as group:name:version, with all that they need at run time, and returns the folder of
// the jars. It does that once: a folder of that name in the cache is taken as it is.
func Jars(ctx context.Context, log io.Writer, name string, artefacts ...string) (string, error) {
	return cached(ctx, log, name, func(dir string) error {
		if err := os.WriteFile(filepath.Join(dir, "pom.xml"), []byte(mavenProject(artefacts)), 0o600); err != nil {
			return err
		}
		_, err := output(ctx, nil, dir, "mvn", "--batch-mode", "--quiet", copyDependencies, "-DincludeScope=runtime", "-DoutputDirectory="+dir)
		return err
	})
}

// mavenProject is a project whose dependencies are the artefacts.
func mavenProject(artefacts []string) string {
	var dependencies strings.Builder
	for _, artefact := range artefacts {
		part := strings.SplitN(artefact, ":", 3)
		fmt.Fprintf(&dependencies, "<dependency><groupId>%s</groupId><artifactId>%s</artifactId><version>%s</version></dependency>\n", part[0], part[1], part[2])
	}
	return `<project>
<modelVersion>4.0.0</modelVersion><groupId>pombo</groupId><artifactId>jars</artifactId><version>1</version>
<dependencies>
` + dependencies.String() + `</dependencies>
</project>
`
}
