def generality_lines(): return []
