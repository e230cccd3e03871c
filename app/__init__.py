"""River's web app: views (pure), runner (decodes), ui and theme (layout)."""
